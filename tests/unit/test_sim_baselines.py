"""Rules of other autoscalers against steps computed by hand from what their projects publish."""

from itertools import product

import pytest
from tests.unit.rule_world import SETTING, histogram, world

from servingslo.errors import InvalidInputError
from servingslo_lab.sim.baselines.aibrix import apa_replicas
from servingslo_lab.sim.baselines.horizontal import pods_metric_replicas
from servingslo_lab.sim.baselines.keda import law_replicas
from servingslo_lab.sim.policies import RULES, policy_of


@pytest.mark.parametrize(
    ("values", "missing", "current", "target", "expected"),
    [
        pytest.param([8.0] * 4, 0, 4, 5.0, 7, id="⌈4 × 1.6⌉"),
        pytest.param([5.4] * 4, 0, 4, 5.0, 4, id="8 % above is tolerated"),
        pytest.param([4.6] * 4, 0, 4, 5.0, 4, id="8 % below is tolerated"),
        pytest.param([10.0] * 3, 1, 4, 5.0, 6, id="missing counts 0 before a rise: ⌈4 × 1.5⌉"),
        pytest.param([10.0] * 2, 2, 4, 5.0, 4, id="missing pods may cancel a rise"),
        pytest.param([1.0] * 2, 2, 4, 5.0, 3, id="missing counts as target before a fall"),
        pytest.param([], 3, 3, 5.0, 3, id="nothing is known"),
    ],
)
def test_hpa_counts_pods_as_kubernetes_does(values, missing, current, target, expected):
    """D = ⌈N·x/target⌉ outside the tolerance of 0.1, with missing pods tempering it."""
    found = pods_metric_replicas(values, missing=missing, current=current, target=target)
    assert found == expected


@pytest.mark.parametrize(
    ("rule", "each", "expected"),
    [
        pytest.param(
            "hpa-waiting", {"waiting": 50.0, "running": 9.0}, 6, id="wants 20, 4 may come in 15 s"
        ),
        pytest.param(
            "keda-guide", {"running": 40.0, "waiting": 3.0}, 6, id="5 for running, 6 for the queue"
        ),
        pytest.param("knative", {"running": 70.0, "waiting": 5.0}, 3, id="⌈150/70⌉ of 100"),
    ],
)
def test_what_two_busy_pods_become(rule, each, expected):
    """At the first look of each rule."""
    assert world(rule).look(2, each=each) == expected


def test_hpa_falls_only_after_five_minutes_without_a_higher_wish():
    """The last wish for 4 was at 60 s; it counts while it is younger than 300 s (After(cutoff))."""
    hpa = world("hpa-waiting")
    for _ in range(4):
        assert hpa.look(4, each={"waiting": 5.0}) == 4
    kept = 0
    while hpa.look(4, each={"waiting": 0.0}) == 4:
        kept += 1
    assert hpa.now == 360.0
    assert kept == 19


@pytest.mark.parametrize(
    ("score", "current", "ready", "expected"),
    [
        pytest.param(1.1, 4, 4, 8, id="4 + ⌈4(1.1/0.55 − 1)⌉"),
        pytest.param(2.0, 3, 3, 11, id="3 + ⌈7.9⌉"),
        pytest.param(1.1, 4, 2, 4, id="half of the pods ready halves the score"),
        pytest.param(0.5, 4, 4, 4, id="between 0.40 and 0.55 nothing moves"),
        pytest.param(0.3, 4, 4, 3, id="4 − ⌊4(1 − 0.3/0.4)⌋"),
        pytest.param(0.39, 4, 4, 4, id="less than one pod is none"),
    ],
)
def test_the_slo_law_of_keda(score, current, ready, expected):
    """Up above 0.55, down below 0.40, with the share of pods that are ready."""
    assert law_replicas(score, current, ready, up=0.55, down=0.40) == expected


def test_knative_panics_at_twice_its_pods_and_does_not_shrink_until_it_is_over():
    """⌈300/70⌉ = 5 is 2.5 times 2 pods; 60 s after the last panic at most half of them go."""
    knative = world("knative")
    assert knative.look(2, each={"running": 150.0, "waiting": 0.0}) == 5
    quiet = {"running": 1.0, "waiting": 0.0}
    assert [knative.look(5, each=quiet) for _ in range(3)] == [5, 5, 5]
    assert knative.look(5, each=quiet) == 2


@pytest.mark.parametrize(
    ("ratio", "count", "expected"),
    [
        pytest.param(1.09, 4, 4, id="within the tolerance above"),
        pytest.param(1.5, 4, 6, id="⌈4 × 1.5⌉"),
        pytest.param(3.0, 4, 8, id="at most twice"),
        pytest.param(0.91, 4, 4, id="within the tolerance below"),
        pytest.param(0.6, 5, 3, id="⌈5 × 0.6⌉"),
        pytest.param(0.2, 5, 2, id="at least half"),
    ],
)
def test_apa_moves_between_half_and_twice(ratio, count, expected):
    """AIBrix APA outside its tolerance of 0.1."""
    assert apa_replicas(ratio, count, up=0.1, down=0.1) == expected


def test_ray_serve_waits_thirty_seconds_up_and_ten_minutes_down():
    """⌈20/2⌉ once it has been wanted for 30 s; ⌈4/2⌉ once for 600 s."""
    ray = world("ray-serve")
    assert [ray.look(4, each={"running": 5.0, "waiting": 0.0}) for _ in range(3)] == [4, 4, 10]
    kept = 0
    while ray.look(10, each={"running": 0.4, "waiting": 0.0}) == 10:
        kept += 1
    # Looking back 30 s, the wish turns down with the first look at 40 %.
    assert 600.0 <= kept * 15.0 <= 645.0


@pytest.mark.parametrize(
    ("policy", "shown"),
    [
        pytest.param(name, shown, id=f"{name}, {kind}")
        for name, (kind, shown) in product(
            RULES,
            [
                ("overload", {"running": 49.0, "waiting": 500.0, "kv_usage_ratio": 1.0}),
                ("idle", {"running": 0.0, "waiting": 0.0, "kv_usage_ratio": 0.0}),
            ],
        )
    ],
)
def test_every_rule_stays_within_its_bounds(policy, shown):
    """Ten minutes of anything; the count follows at once."""
    rule, count = world(policy), 3
    for look in range(1, 41):
        served = 100.0 * look
        tokens = histogram((1e5,), (served, 0.0), served * 100)
        each = {
            **shown, "kv_capacity_tokens": 15_000.0, "prompt_tokens": tokens,
            "output_tokens": tokens, "ttft_seconds": histogram((1.0,), (0.0, served), served),
        }  # fmt: skip
        count = rule.look(count, each=each)
        assert SETTING.minimum <= count <= SETTING.maximum


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("hpa", ("'hpa'", "hpa-kv"), id="no such rule"),
        pytest.param("hpa-kv:kv=0.3", ("'kv'", "kv_usage"), id="no such setting"),
        pytest.param("hpa-kv:kv_usage=much", ("kv_usage=much", "number"), id="no number"),
        pytest.param("static:n=3", ("static:n=3", "without settings"), id="none to set"),
    ],
)
def test_an_unknown_policy_or_setting_is_refused(text, words):
    """The message names what there is."""
    with pytest.raises(InvalidInputError) as refused:
        policy_of(text)
    assert all(word in str(refused.value) for word in words)
