"""`servingslo shadow`: somebody else's rule next to what was, on a recording or a made-up week."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli_calls import CLI
from tests.unit.test_migrate import HPA, SCALED_OBJECT, changed, prometheus

from servingslo.api.v1alpha1 import API_VERSION
from servingslo.cli.output import as_json
from servingslo.controller.recordings.recording import replay
from servingslo.errors import InvalidInputError
from servingslo.estimation.requests.misses import Misses
from servingslo.estimation.sample import EngineSample
from servingslo.policy.hpa_behavior import SelectPolicy
from servingslo_lab.cli.autoscalers.documents import autoscalers_of
from servingslo_lab.cli.past.gap import Gap
from servingslo_lab.cli.shadowing.page import page
from servingslo_lab.cli.shadowing.play import SEEN, SERVINGSLO, Played, Tick, played
from servingslo_lab.cli.shadowing.rule import Rule, rule_of
from servingslo_lab.cli.shadowing.summary import Shadow, summary
from servingslo_lab.cli.shadowing.text import cells, shadow_text
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
            changed(HPA, metrics=[pods(f"prometheus.googleapis.com|{RUNNING}|gauge", "10")]),
            3.0,
            id="by the adapter of Google Cloud",
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


@pytest.mark.parametrize(
    ("needed", "up", "down", "wanted"),
    [
        pytest.param(21.0, None, None, 20, id="default-up"),
        pytest.param(18.0, None, None, 20, id="default-down"),
        pytest.param(22.1, None, None, 23, id="beyond-the-default"),
        pytest.param(20.1, "0", "0", 21, id="none-up"),
        pytest.param(19.0, "0", "0", 19, id="none-down"),
        pytest.param(21.0, "50m", None, 20, id="at-its-bound"),
        pytest.param(21.1, 0.05, None, 22, id="a-number"),
        pytest.param(18.5, "50m", None, 20, id="up-alone"),
        pytest.param(15.0, None, "0.3", 20, id="wide-down"),
    ],
)
def test_a_tolerance_of_each_direction_is_the_stated_one(
    needed: float, up: str | float | None, down: str | None, wanted: int
) -> None:
    """Worked by hand for twenty replicas, as Kubernetes' isWithin; of both kinds of object."""
    stated = {"scaleUp": up, "scaleDown": down}
    behavior = {key: {} if one is None else {"tolerance": one} for key, one in stated.items()}
    config = {"horizontalPodAutoscalerConfig": {"behavior": behavior}}
    for source in (
        changed(HPA, behavior=behavior),
        changed(SCALED_OBJECT_ON_QUEUE, advanced=config),
    ):
        assert rule(source).replicas(needed, 20) == wanted


@pytest.mark.parametrize("tolerance", ["-0.1", "some"])
def test_a_bad_tolerance_is_refused(tolerance: str) -> None:
    """With its path."""
    with pytest.raises(InvalidInputError, match=r"spec\.behavior\.scaleUp\.tolerance"):
        rule(changed(HPA, behavior={"scaleUp": {"tolerance": tolerance}}))


CRON = {"type": "cron", "metadata": {"start": "0 8 * * *", "desiredReplicas": "10"}}
SCALED_OBJECT_ON_QUEUE = changed(SCALED_OBJECT, triggers=[CRON, prometheus(f"sum({WAITING})", "5")])


@pytest.mark.parametrize("threshold", ["0", "-1", "many"])
def test_a_bad_threshold_is_refused(threshold: str) -> None:
    """With its path."""
    source = changed(SCALED_OBJECT, triggers=[prometheus(f"sum({WAITING})", threshold)])
    with pytest.raises(InvalidInputError, match=r"spec\.triggers\[0\]: threshold"):
        rule(source)


def test_a_formula_over_triggers_is_refused() -> None:
    """KEDA compares its value with its own target; a trigger's threshold decides nothing."""
    triggers = [prometheus(f"sum({WAITING})", "5", name="waiting")]
    modifiers = {"formula": "waiting / 10", "target": "1"}
    source = changed(SCALED_OBJECT, triggers=triggers, advanced={"scalingModifiers": modifiers})
    with pytest.raises(InvalidInputError, match=r"scalingModifiers\.formula: 'waiting / 10'"):
        rule(source)


def shadowed(name: str, found: Rule) -> Shadow:
    """The rule on a stored recording."""
    return summary(played(replay(lines(name)), found), gpus_per_replica=2)


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
    assert few.gpu_hours.value == pytest.approx(2 * few.mean_replicas * mean.seconds / 3600)
    assert many.gpu_hours.value > 3 * few.gpu_hours.value
    assert few.missed_requests is not None
    assert many.missed_requests is not None
    assert few.missed_requests.value > 2 * many.missed_requests.value
    assert 0 < mean.judged_requests <= mean.requests


def test_what_was_is_counted_and_agrees_with_the_law() -> None:
    """The engines' histograms of a flash crowd that cost a fifth of the requests their objectives.

    Of so few minutes nothing is said of other times.
    """
    found = shadowed("flash", on_running("4"))
    seen = found.outcomes[0]
    assert [one.measured for one in found.outcomes] == [True, False, False]
    assert seen.missed_ratio is not None
    assert found.law_ratio is not None
    assert seen.requests == pytest.approx(found.judged_requests, rel=0.05)
    assert seen.missed_ratio.value == pytest.approx(0.2, abs=0.02)
    assert found.law_ratio.value == pytest.approx(seen.missed_ratio.value, abs=0.05)
    assert seen.most_missed_requests > seen.missed_ratio.value * seen.requests
    assert seen.gpu_hours.low is None
    assert "Too short for intervals" in shadow_text(found)


RULE = "HorizontalPodAutoscaler llama-chat"
START, MINUTE, DAY = 1_795_219_200.0, 60.0, 86_400.0


def week(lost_day: int | None = None, without: range = range(0)) -> Played:
    """Seven days of a request a second: the rule has twice the replicas of ServingSLO.

    lost_day: on which a tenth of the requests missed, in fact and by the law of all three.
    without: hours that were not read.
    """
    ticks = []
    for minute in range(7 * 24 * 60):
        if minute // 60 in without:
            continue
        missed = 6.0 if minute // 1440 == lost_day else 0.06
        ticks.append(
            Tick(
                time_seconds=START + minute * MINUTE,
                seconds=MINUTE,
                arrival_rate_per_second=1.0,
                replicas={SEEN: 4, RULE: 4 + minute // 1440, SERVINGSLO: 2},
                judged_requests=60.0,
                missed=dict.fromkeys((SEEN, RULE, SERVINGSLO), missed),
                measured=Misses(requests=60.0, least=missed, most=missed),
            )
        )
    return Played(
        resource="inference/llama-chat", rule=RULE, target_share_ratio=0.99, unread=(),
        unmeasured=(), devices=None, ticks=tuple(ticks),
    )  # fmt: skip


def test_a_week_has_intervals_over_its_days_and_each_day_its_promise() -> None:
    """Worked by hand: what is the same on every day has no spread, a day alone is in no promise."""
    found = summary(week(lost_day=3), gpus_per_replica=8)
    seen, rule_row, ours = found.outcomes
    assert seen.gpu_hours.value == pytest.approx(7 * 24 * 4 * 8)
    assert (seen.gpu_hours.low, seen.gpu_hours.high) == pytest.approx((seen.gpu_hours.value,) * 2)
    assert rule_row.gpu_hours.value == pytest.approx(7 * 24 * 7 * 8)
    low, high = rule_row.gpu_hours.low, rule_row.gpu_hours.high
    assert low is not None
    assert high is not None
    # The mean of seven draws from 4 to 10 replicas has a standard error of 0.76.
    assert low == pytest.approx(7 * 24 * 8 * (7 - 2 * 0.76), rel=0.03)
    assert high == pytest.approx(7 * 24 * 8 * (7 + 2 * 0.76), rel=0.03)
    assert found.comparisons[0].gpu_hours_ratio.value == pytest.approx(-0.5)
    assert ours.missed_ratio is not None
    assert ours.missed_ratio.value == pytest.approx((0.1 + 6 * 0.001) / 7)
    assert ours.missed_ratio.low == pytest.approx(0.001)
    assert set(found.kept_days.values()) == {(6, 7)}
    assert [day.kept_ratio[SEEN] for day in found.days][2:5] == pytest.approx([0.999, 0.9, 0.999])
    assert found.agreed_ratio == pytest.approx(1 / 7)


def test_what_was_not_read_is_in_no_figure_and_on_every_page() -> None:
    """A day of which six hours could not be read, in hours, text and picture."""
    gap = Gap(
        start_seconds=int(START + DAY),
        end_seconds=int(START + DAY + 6 * 3600),
        reason="<no answer>",
    )
    found = summary(week(without=range(24, 30)), gpus_per_replica=1, gaps=[gap])
    assert found.seconds == 7 * DAY - 6 * 3600
    assert found.outcomes[0].gpu_hours.value == pytest.approx((7 * 24 - 6) * 4)
    assert [day.read_seconds / 3600 for day in found.days] == [24, 18, 24, 24, 24, 24, 24]
    assert "Not read: 6h from 2026-11-22T00:00:00Z: <no answer>" in shadow_text(found)
    made = page(found)
    assert "&lt;no answer&gt;" in made
    # The line of the replicas begins anew after the gap.
    assert re.findall(r' class="ours" d="([^"]*)"', made)[0].count("M") == 2


def test_the_page_needs_nothing_from_elsewhere() -> None:
    """No address but that of the SVG namespace; a table head for each column, a title, a language.

    Text and JSON carry its figures.
    """
    found = summary(week(lost_day=3), gpus_per_replica=8)
    made, text, document = page(found), shadow_text(found), json.loads(as_json(found))
    assert set(re.findall(r"https?://[^\"<]+", made)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<(script|link|img|iframe)|url\(|@import", made)
    assert '<html lang="en">' in made
    assert made.count("<svg") == made.count('role="img"') == 3
    assert "prefers-color-scheme: dark" in made
    for one in found.outcomes:
        for words in cells(one, found)[1:]:
            assert f">{words}<" in made
            assert words in text
    hours = document["outcomes"][1]["gpu_hours"]
    assert (hours["value"], hours["low"]) == (
        found.outcomes[1].gpu_hours.value,
        found.outcomes[1].gpu_hours.low,
    )


SPEC = {
    "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llama-chat"},
    "objectives": [{"metric": "ttft", "percentile": 99, "threshold": "1s"}],
    "replicas": {"max": 16},
}


def manifest(folder: Path, **spec: Any) -> Path:
    """A ServingSLO with these fields in its spec."""
    path = folder / "slo.yaml"
    document = {"apiVersion": API_VERSION, "kind": "ServingSLO", "metadata": {"name": "llama-chat"}}
    path.write_text(json.dumps({**document, "spec": {**SPEC, **spec}}), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        pytest.param((), "RECORDING is missing; allowed: a recording, or --prom", id="nothing"),
        pytest.param(("--prometheus-url", "http://localhost:1"), "-f is missing", id="no spec"),
        pytest.param(("r.jsonl", "-f", "slo.yaml"), "-f: .*not with a recording", id="both"),
        pytest.param(("-f", "{slo}", "--days", "0"), "--days: 0 .*1 to 31", id="no day"),
        pytest.param(("-f", "{slo}", "--days", "32"), "--days: 32 .*1 to 31", id="many days"),
        pytest.param(("-f", "{slo}", "--every", "1s"), "--every: '1s' .*15s to 2m", id="a step"),
        pytest.param(("-f", "{slo}", "-n", "A b"), "--namespace: 'A b'", id="a namespace"),
        pytest.param(
            ("-f", "{other}"),
            "scaleTargetRef: 'Deployment/llama-chat' .*allowed: StatefulSet/other",
            id="another workload",
        ),
        pytest.param(
            ("-f", "{slo}", "--out", "/no/folder/x"), "--out: '/no/f.*folder that", id="no folder"
        ),
        pytest.param(("-f", "{slo}"), "no connection to 127.0.0.1:1", id="unreachable"),
        pytest.param(("-f", "{slo}", "--prometheus-url", "x"), "-url: 'x'", id="no address"),
    ],
)  # fmt: skip
def test_a_bad_question_to_prometheus_is_refused(
    cli: CLI, tmp_path: Path, arguments: tuple[str, ...], error: str
) -> None:
    """Naming flag, value and range; nothing is asked of an address that nobody has."""
    hpa = tmp_path / "hpa.yaml"
    hpa.write_text(json.dumps(HPA), encoding="utf-8")
    (other := tmp_path / "other").mkdir()
    elsewhere = manifest(
        other, targetRef={**SPEC["targetRef"], "kind": "StatefulSet", "name": "other"}
    )
    paths = {"slo": manifest(tmp_path), "other": elsewhere}
    given = [one.format(**paths) for one in arguments]
    if "-f" in given and given[0] == "-f" and "--prometheus-url" not in given:
        given += ["--prometheus-url", "http://127.0.0.1:1"]
    done = cli("shadow", "--hpa", hpa, *given)
    assert done.exit_code != 0
    assert re.search(error, done.err), done.err


def test_bad_input_names_the_flag(cli: CLI, tmp_path: Path) -> None:
    """Neither or both manifests, a manifest without the kind, a resource that is not there."""
    manifest = tmp_path / "hpa.yaml"
    manifest.write_text(json.dumps(HPA), encoding="utf-8")
    for arguments, error in (
        ((), "exactly one of --hpa and --scaled-object"),
        (("--hpa", str(manifest), "--scaled-object", str(manifest)), "exactly one of --hpa"),
        (("--scaled-object", str(manifest)), "0 of kind ScaledObject"),
        (("--hpa", str(tmp_path / "none.yaml")), "--hpa: .*readable file"),
    ):
        done = cli("shadow", "r.jsonl", *arguments)
        assert done.exit_code == 2
        assert re.search(error, done.err), done.err
    with pytest.raises(InvalidInputError, match=r"--resource: 'a/b'.*simulation/fleet"):
        played(replay(lines("steady")), on_running("16"), "a/b")
    with pytest.raises(InvalidInputError, match="the recording is empty"):
        played([], on_running("16"))
