"""A recording of a real vLLM, fitted and replayed: what estimation and models promise holds there.

See data/vllm_0.32.0_recording.README.md for how it was made, docs/designs/0006-real-engine.md for
what it shows. Bounds are what was seen, with a margin; none is a promise for other engines.
"""

import gzip
import json
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest
from tests.validation.engine_comparison import PhaseComparison, compared, estimated
from tests.validation.engine_requests import Served, read_served

from servingslo.cli.output import as_json
from servingslo.controller.recordings.recording import observations, replay
from servingslo.estimation.estimate import Estimate, FleetSample
from servingslo.explain.log_line import log_line
from servingslo.explain.text import text
from servingslo.policy.decision import Decision
from servingslo.reasons import Constraint, Reason

DATA = Path(__file__).parent / "data"
RECORDING = DATA / "vllm_0.32.0_recording.jsonl.gz"
REQUESTS = DATA / "vllm_0.32.0_requests.csv"
# When the load began, on the recording's clock, and how long each of its rates lasted.
BEGAN_SECONDS = 1795277581.46877
# Four scrapes: before, the load of the phase before is still in the rate.
SEEN_AFTER_SECONDS = 20.0
PHASE_SECONDS = 110.0
# A prediction is made after this many observations: those of the first three phases.
LEARNT_COUNT = 69


@cache
def lines() -> tuple[str, ...]:
    """The recording, line by line."""
    with gzip.open(RECORDING, "rt", encoding="utf-8") as file:
        return tuple(file)


@cache
def samples() -> tuple[FleetSample, ...]:
    """What the estimator is given of each observation."""
    return tuple(
        FleetSample(time_seconds=o.time_seconds, pods=o.pods, gateway=o.gateway)
        for o in observations(lines())
    )


@cache
def served() -> tuple[Served, ...]:
    """The requests, as their client saw them."""
    with REQUESTS.open(encoding="utf-8") as file:
        return tuple(read_served(file))


def fitted(chosen: Sequence[FleetSample]) -> Estimate:
    """The estimate after these, which has a trusted law and knows the limits."""
    estimate = estimated(chosen)
    assert estimate.law.trusted, estimate.law
    return estimate


@cache
def comparisons(learnt_count: int | None = None) -> tuple[PhaseComparison, ...]:
    """Every phase beside model and simulator, with the law of the first observations."""
    estimate = fitted(samples()[:learnt_count])
    assert estimate.law.law is not None
    assert estimate.limits is not None
    return tuple(
        compared(
            served(), samples(), BEGAN_SECONDS, PHASE_SECONDS, estimate.law.law, estimate.limits
        )
    )


def test_every_signal_of_a_real_engine_is_read() -> None:
    """Gauges, counters, histograms, cache size and limits; it has no drafts to tell of.

    What it is was not written down with each engine then; sums of whole batches are of servers of
    dynamic batches.
    """
    (pod,) = samples()[-1].pods
    (engine,) = pod.engines
    unknown = [name for name in engine.__slots__ if getattr(engine, name) is None]
    of_batches = {"executions_total", "request_seconds_total", "queued_seconds_total"}
    exported = {"num_seqs_in_force", "batched_tokens_in_force"}
    # It has no draft model, and hands no KV cache over.
    absent = {"accepted_draft_tokens_total", "transfer_seconds"}
    # Counted by reason; its phases were not recorded then.
    absent |= {"aborted_total", "failed_total", "prefill_seconds", "decode_seconds"}
    # It serves no adapters.
    absent |= {"adapter_slots"}
    assert set(unknown) - of_batches - exported == {"runtime"} | absent
    assert (engine.max_num_seqs, engine.max_num_batched_tokens) == (64, 512)
    assert engine.nan_metrics == ()


def test_counters_agree_with_what_the_client_sent() -> None:
    """Requests and tokens since the last observation before the load; none was lost."""
    idle = [sample for sample in samples() if sample.time_seconds < BEGAN_SECONDS][-1]
    (before,), (after,) = (sample.pods[0].engines for sample in (idle, samples()[-1]))
    sent = served()
    assert all(one.ttft_seconds is not None for one in sent)
    assert after.finished_total["length"] - before.finished_total["length"] == len(sent)
    assert after.prompt_tokens_total - before.prompt_tokens_total == sum(
        one.prompt_tokens for one in sent
    )
    assert after.generation_tokens_total - before.generation_tokens_total == sum(
        one.output_tokens for one in sent
    )


def test_lengths_and_rate_are_found() -> None:
    """Mean lengths within 5 % of the requests sent."""
    estimate, sent = fitted(samples()), served()
    prompt = sum(one.prompt_tokens for one in sent) / len(sent)
    output = sum(one.output_tokens for one in sent) / len(sent)
    assert estimate.prompt_tokens_mean == pytest.approx(prompt, rel=0.05)
    assert estimate.output_tokens_mean == pytest.approx(output, rel=0.05)


def test_the_law_is_trusted_and_its_error_is_stated() -> None:
    """4.5 % out of sample where 15 % is the gate; the standard error at twice the load is 5 %."""
    law = fitted(samples()).law
    assert law.source == "fit"
    assert law.reason is Reason.MODEL_TRUSTED
    assert law.sample_count >= 100
    assert law.fit_error is not None
    assert law.fit_error < 0.07
    assert law.standard_error_ratio is not None
    assert law.standard_error_ratio < 0.10


def test_the_law_is_physically_sensible() -> None:
    """Everything costs time; a lone sequence's step is what the engine measured at light load."""
    law = fitted(samples()).law.law
    assert law is not None
    assert law.step_fixed_seconds == pytest.approx(0.0527, rel=0.05)
    assert law.step_per_sequence_seconds == pytest.approx(1.15e-3, rel=0.15)
    assert law.prefill_per_token_seconds == pytest.approx(0.652e-3, rel=0.10)
    # Of the lightest phase, where a token waits for somebody's prefill now and then.
    lightest = min(one.observed.itl_mean_seconds or 1.0 for one in comparisons())
    assert 0.8 * lightest < law.step_seconds(1.0) < lightest


@pytest.mark.parametrize(
    "offset",
    [pytest.param(0, id="first"), pytest.param(1, id="second"), pytest.param(2, id="third")],
)
def test_scrapes_of_fifteen_seconds_find_the_same_law(offset: int) -> None:
    """Every third observation: step times within 8 % from one to 64 sequences, and trusted."""
    every, third = fitted(samples()).law.law, fitted(samples()[offset::3]).law.law
    assert every is not None
    assert third is not None
    for sequences in (1.0, 8.0, 64.0):
        assert third.step_seconds(sequences) == pytest.approx(
            every.step_seconds(sequences), rel=0.08
        )
    assert third.prefill_per_token_seconds == pytest.approx(
        every.prefill_per_token_seconds, rel=0.08
    )


def test_light_load_tells_as_much_as_it_says() -> None:
    """Two minutes at 15 % of saturation: step times within two standard errors of the final law."""
    assert not estimated(samples()[:10]).law.trusted
    early, final = estimated(samples()[:25]).law, fitted(samples()).law.law
    assert early.trusted
    assert early.law is not None
    assert final is not None
    assert early.standard_error_ratio is not None
    for sequences in (1.0, 4.0, 8.0):
        assert early.law.step_seconds(sequences) == pytest.approx(
            final.step_seconds(sequences), rel=2.0 * early.standard_error_ratio
        )


@pytest.mark.parametrize(
    ("metric", "percentile", "low", "high"),
    [
        pytest.param("ttft", 50.0, 0.70, 1.20, id="ttft-p50"),
        pytest.param("ttft", 95.0, 0.68, 1.30, id="ttft-p95"),
        pytest.param("tpot", 50.0, 0.85, 1.15, id="tpot-p50"),
        pytest.param("tpot", 95.0, 0.75, 1.20, id="tpot-p95"),
    ],
)
def test_simulator_follows_the_engine_on_the_same_requests(
    metric: str, percentile: float, low: float, high: float
) -> None:
    """Simulated over real, in every phase."""
    for one in comparisons():
        assert low < one.simulated_ratio(metric, percentile) < high


@pytest.mark.parametrize(
    ("metric", "percentile", "low", "high"),
    [
        pytest.param("ttft", 50.0, 0.80, 1.20, id="ttft-p50"),
        pytest.param("ttft", 95.0, 0.80, 1.25, id="ttft-p95"),
        pytest.param("tpot", 50.0, 0.85, 1.20, id="tpot-p50"),
        pytest.param("tpot", 95.0, 0.80, 1.25, id="tpot-p95"),
    ],
)
def test_the_law_of_three_phases_predicts_the_two_that_follow(
    metric: str, percentile: float, low: float, high: float
) -> None:
    """Predicted over real, of phases that the law had not seen, at work ratios 0.5 and 0.3."""
    for one in comparisons(LEARNT_COUNT)[3:]:
        assert low < one.ratio(metric, percentile) < high


def test_mean_inter_token_latency_is_predicted() -> None:
    """Within 20 % in every phase; the engine's own mean."""
    for one in comparisons():
        assert one.predicted.itl_mean_seconds == pytest.approx(
            one.observed.itl_mean_seconds, rel=0.20
        )


@cache
def decisions() -> tuple[Decision, ...]:
    """The production planner's, on every observation."""
    return tuple(one.decision for one in replay(lines()))


def test_a_replay_decides_the_same_twice() -> None:
    """Every number and every word of every decision."""
    again = [as_json(one.decision) for one in replay(lines())]
    assert [as_json(one) for one in decisions()] == again


def test_more_is_wanted_under_load_and_nothing_is_done() -> None:
    """One replica at light load, two or three at the heaviest, one again; the mode is Recommend."""
    wanted: dict[int, set[int | None]] = {}
    for one in decisions():
        phase, since = divmod(one.time_seconds - BEGAN_SECONDS, PHASE_SECONDS)
        if since >= SEEN_AFTER_SECONDS:
            wanted.setdefault(int(phase), set()).add(one.recommended_replicas)
    assert wanted[0] == {1}
    assert wanted[2] <= {2, 3}
    assert decisions()[-1].recommended_replicas == 1
    assert decisions()[-1].model.trusted
    assert not any(one.apply_replicas for one in decisions())


def without_limits(*fields: str) -> Iterator[str]:
    """The recording as of an engine that was started without these flags."""
    for line in lines():
        entry = json.loads(line)
        for pod in entry.get("pods", ()):
            for engine in pod["engines"]:
                engine.update(dict.fromkeys(fields))
        yield json.dumps(entry)


def _sized(decision: Decision) -> int:
    """The count of all constraints but the reserve, which is of the past and not of the engine."""
    needs = (n.replicas for n in decision.needs if n.constraint is not Constraint.RESERVE)
    return max((count for count in needs if count is not None), default=1)


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param(("max_num_seqs",), id="no-sequences"),
        pytest.param(("max_num_batched_tokens",), id="no-budget"),
        pytest.param(("max_num_seqs", "max_num_batched_tokens"), id="neither"),
    ],
)
def test_an_engine_without_flags_is_sized_as_one_with_them(fields: tuple[str, ...]) -> None:
    """Trusted in 100 of 116 observations, and never more than one replica away."""
    found = [one.decision for one in replay(without_limits(*fields))]
    assert len(found) == 116
    assert sum(one.model.trusted for one in found) >= 100
    for one, stated in zip(found, decisions(), strict=True):
        assert abs(_sized(one) - _sized(stated)) <= 1


def test_assumed_limits_are_told_and_widen_the_error() -> None:
    """In the log line, in `explain`, in a step and in the model's stated error."""
    without = [one.decision for one in replay(without_limits("max_num_seqs"))][-1]
    stated = decisions()[-1]
    assert " limits=args " in log_line(stated)
    assert " limits=default,args " in log_line(without)
    assert "max_num_seqs 128 (default), max_num_batched_tokens 512 (args)" in text(without)
    assert Reason.LIMITS_ASSUMED in {step.reason for step in without.steps}
    assert Reason.LIMITS_ASSUMED not in {step.reason for step in stated.steps}
    assert without.model.fit_error is not None
    assert stated.model.fit_error is not None
    assert without.model.fit_error > 1.5 * stated.model.fit_error
