"""`servingslo shadow`: somebody else's rule on a recording."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.test_migrate import HPA, SCALED_OBJECT, changed, prometheus

from servingslo.controller.recordings.recording import replay
from servingslo.errors import InvalidInputError
from servingslo.estimation.sample import EngineSample
from servingslo.policy.hpa_behavior import SelectPolicy
from servingslo_lab.cli.autoscalers.documents import autoscalers_of
from servingslo_lab.cli.shadow import shadow
from servingslo_lab.cli.shadowing.play import SEEN, SERVINGSLO, Shadow, played
from servingslo_lab.cli.shadowing.rule import Rule, rule_of
from servingslo_lab.sim.baselines.view import Scrape

REPLAYS = Path(__file__).parents[1] / "golden" / "data" / "replays"
WAITING = "vllm:num_requests_waiting"
RUNNING = "vllm:num_requests_running"


def lines(name: str) -> list[str]:
    """A stored recording."""
    with gzip.open(REPLAYS / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
        return file.readlines()


def rule(document: dict[str, Any]) -> Rule:
    """The rule of the only autoscaler."""
    return rule_of(autoscalers_of([document])[0])


def pods(name: str, target: str, kind: str = "AverageValue") -> dict[str, Any]:
    """A metric of an HPA over pods."""
    number = "value" if kind == "Value" else "averageValue"
    return {
        "type": "Pods",
        "pods": {"metric": {"name": name}, "target": {"type": kind, number: target}},
    }


def on_running(target: str, **bounds: Any) -> Rule:
    """An HPA on running requests."""
    return rule(changed(HPA, metrics=[pods("vllm_num_requests_running", target)], **bounds))


def scrape(**gauges: tuple[float, ...]) -> Scrape:
    """Engines with these gauges, one of each for each pod."""
    rows = [dict(zip(gauges, values, strict=True)) for values in zip(*gauges.values(), strict=True)]
    engines = {f"pod-{index}": EngineSample(engine="0", **row) for index, row in enumerate(rows)}
    return Scrape(time_seconds=0.0, replicas=len(rows), live=len(rows), engines=engines, unready=0)


SEEN_PODS = scrape(running=(10.0, 20.0), waiting=(0.0, 6.0), kv_usage_ratio=(0.2, 0.6))


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        pytest.param(
            changed(HPA, metrics=[pods("vllm_num_requests_running", "10")]), 3.0, id="pods"
        ),
        pytest.param(
            changed(HPA, metrics=[pods("vllm:kv_cache_usage_perc", "400m")]), 2.0, id="a quantity"
        ),
        pytest.param(
            changed(SCALED_OBJECT, triggers=[prometheus(f"sum({RUNNING}) + sum({WAITING})", "12")]),
            3.0,
            id="a sum of two",
        ),
        pytest.param(
            changed(SCALED_OBJECT, triggers=[prometheus(f"max({WAITING}{{a='b'}})", "2")]),
            3.0,
            id="the largest",
        ),
        pytest.param(
            changed(
                SCALED_OBJECT, triggers=[prometheus(f"avg({RUNNING})", "5", metricType="Value")]
            ),
            6.0,
            id="Value multiplies by the pods that are ready",
        ),
    ],
)
def test_a_signal_asks_for_what_the_hpa_would(source: dict[str, Any], wanted: float) -> None:
    """Worked by hand for two pods: 30 running, 6 waiting, KV at 20 % and 60 %."""
    (signal,) = rule(source).signals
    assert signal.replicas(SEEN_PODS) == pytest.approx(wanted)


def test_the_behavior_is_the_stated_one_with_the_hpa_s_defaults() -> None:
    """Policies of scale-up are not stated, so that they are 4 pods or 100 % in 15 s."""
    found = rule(HPA)
    assert [(one.value, one.period_seconds) for one in found.behavior.scale_up.policies] == [
        (100, 15),
        (4, 15),
    ]
    down = found.behavior.scale_down
    assert (down.stabilization_window_seconds, down.select_policy) == (600, SelectPolicy.MIN)
    assert (found.minimum, found.maximum) == (2, 16)
    assert rule(SCALED_OBJECT_ON_QUEUE).minimum == 1


CRON = {"type": "cron", "metadata": {"start": "0 8 * * *", "desiredReplicas": "10"}}
SCALED_OBJECT_ON_QUEUE = changed(SCALED_OBJECT, triggers=[CRON, prometheus(f"sum({WAITING})", "5")])


@pytest.mark.parametrize("threshold", ["0", "-1", "many"])
def test_a_bad_threshold_is_refused(threshold: str) -> None:
    """With its path."""
    source = changed(SCALED_OBJECT, triggers=[prometheus(f"sum({WAITING})", threshold)])
    with pytest.raises(InvalidInputError, match=r"spec\.triggers\[0\]: threshold"):
        rule(source)


def shadowed(name: str, found: Rule) -> Shadow:
    """The rule on a stored recording."""
    return played(replay(lines(name)), found)


def test_a_generous_rule_costs_hours_and_a_mean_one_costs_requests() -> None:
    """On a flash crowd; what was and what ServingSLO recommends do not depend on the rule."""
    generous = shadowed("flash", on_running("4", maxReplicas=16))
    mean = shadowed("flash", on_running("4", minReplicas=1, maxReplicas=1))
    many, few = generous.outcomes[1], mean.outcomes[1]
    assert generous.outcomes[::2] == mean.outcomes[::2]
    assert [one.name for one in generous.outcomes] == [
        SEEN,
        "HorizontalPodAutoscaler llama-chat",
        SERVINGSLO,
    ]
    assert (few.least_replicas, few.greatest_replicas, many.greatest_replicas) == (1, 1, 16)
    assert few.replica_hours == pytest.approx(few.mean_replicas * mean.seconds / 3600)
    assert many.replica_hours > 3 * few.replica_hours
    assert few.missed_requests is not None
    assert many.missed_requests is not None
    assert few.missed_requests > 2 * many.missed_requests
    assert 0 < mean.judged_requests <= mean.requests


def test_bad_input_names_the_flag(tmp_path: Path) -> None:
    """Neither or both manifests, a manifest without the kind, a resource that is not there."""
    manifest = tmp_path / "hpa.yaml"
    manifest.write_text(json.dumps(HPA), encoding="utf-8")
    with pytest.raises(InvalidInputError, match="exactly one of --hpa and --scaled-object"):
        shadow("r.jsonl")
    with pytest.raises(InvalidInputError, match="exactly one of --hpa and --scaled-object"):
        shadow("r.jsonl", hpa=manifest, scaled_object=manifest)
    with pytest.raises(InvalidInputError, match="0 of kind ScaledObject"):
        shadow("r.jsonl", scaled_object=manifest)
    with pytest.raises(InvalidInputError, match=r"--hpa: .*readable file"):
        shadow("r.jsonl", hpa=tmp_path / "none.yaml")
    with pytest.raises(InvalidInputError, match=r"--resource: 'a/b'.*simulation/fleet"):
        played(replay(lines("steady")), on_running("16"), "a/b")
    with pytest.raises(InvalidInputError, match="the recording is empty"):
        played([], on_running("16"))
