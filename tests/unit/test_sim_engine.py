"""The simulated engine against hand-computed steps and against what a real vLLM does."""

from dataclasses import replace

import numpy as np
import pytest

from servingslo.errors import InvalidInputError
from servingslo.models.engine.service_time import EngineLimits, ServiceLaw
from servingslo_lab.sim.replicas import layout
from servingslo_lab.sim.replicas.engine import Engine, Outcome, RequestRecord

LAW = ServiceLaw(
    step_fixed_seconds=0.010,
    step_per_sequence_seconds=0.001,
    prefill_per_token_seconds=0.0001,
    context_per_token_seconds=0.000001,
)


def engine(
    *, max_num_seqs: int = 8, budget: int = 256, kv_tokens: int = 65536, **options
) -> Engine:
    """An engine with round numbers."""
    limits = EngineLimits(
        max_num_seqs=max_num_seqs, max_num_batched_tokens=budget, kv_capacity_tokens=kv_tokens
    )
    return Engine(law=LAW, limits=limits, **options)


def send(one: Engine, now: float, prompt: int, output: int, cached_ratio: float = 0.0) -> int:
    """Submit a request that must be accepted."""
    request = one.requests.add(
        arrival=now, prompt_tokens=prompt, output_tokens=output, cached_ratio=cached_ratio
    )
    assert one.submit(request, now)
    return request


def finish(one: Engine, until: float = 1e6) -> list[RequestRecord]:
    """Records of all that ends, in order of its end."""
    return [one.requests.take(request) for request in one.advance(until)]


def test_one_request_takes_a_prefill_step_and_a_step_for_each_further_token():
    """TTFT and the end follow from the service law, token by token."""
    one = engine()
    send(one, 5.0, prompt=100, output=3)

    (record,) = finish(one)

    prefill = 0.010 + 0.001 * 1 + 0.0001 * 100
    decodes = 2 * (0.010 + 0.001) + 0.000001 * (101 + 102)
    assert record.ttft_seconds == pytest.approx(prefill)
    assert record.finish_seconds == pytest.approx(5.0 + prefill + decodes)
    assert record.tpot_seconds == pytest.approx(decodes / 2)


def test_steps_of_a_law_that_bends_take_what_it_says():
    """Prompt tokens hide under the loading of memory, and what tokens touch is loaded."""
    bent = replace(LAW, loading_seconds=0.02, loading_tokens=30.0, hidden_tokens=64.0)
    limits = EngineLimits(max_num_seqs=8, max_num_batched_tokens=256, kv_capacity_tokens=65536)
    one = Engine(law=bent, limits=limits)
    send(one, 0.0, prompt=100, output=2)

    (record,) = finish(one)

    assert record.ttft_seconds == pytest.approx(bent.step_seconds(1, 100))
    assert record.tpot_seconds == pytest.approx(bent.step_seconds(1, 0, 101))


def test_long_prompts_are_prefilled_in_chunks_beside_decoding_sequences():
    """Decodes take their token first; the rest of the budget prefills, in order of arrival."""
    one = engine(budget=64)
    send(one, 0.0, prompt=64, output=50)
    send(one, 0.0, prompt=100, output=2)

    records = finish(one)

    first_step = 0.010 + 0.001 + 0.0001 * 64
    chunk = 0.010 + 0.001 + 0.0001 * 63 + 0.000001 * 65
    last_chunk = 0.010 + 0.002 + 0.0001 * 37 + 0.000001 * 66
    assert records[0].first_token_seconds == pytest.approx(first_step + chunk + last_chunk)
    assert records[1].first_token_seconds == pytest.approx(first_step)


def test_results_do_not_depend_on_how_often_time_is_advanced():
    """Looking at the engine changes nothing, neither records nor histograms."""
    results = []
    for interval in (None, 0.003):
        one = engine(kv_tokens=1024)
        rng = np.random.default_rng(4)
        records, now, looked = [], 0.0, 0.0
        for _ in range(400):
            now += float(rng.exponential(0.12))
            while interval is not None and looked < now:
                records += finish(one, looked)
                looked += interval
            prompt, output = int(rng.integers(1, 400)), int(rng.integers(1, 60))
            request = one.requests.add(arrival=now, prompt_tokens=prompt, output_tokens=output)
            one.submit(request, now)
            if interval is None:
                records += finish(one, now)
        records += finish(one)
        assert one.counter(layout.PREEMPTIONS) > 0
        results.append((sorted(records, key=lambda r: r.arrival_seconds), one.row.counts))

    assert results[0] == results[1]


def test_latest_request_is_preempted_and_computed_again_when_blocks_run_out():
    """Two sequences that outgrow the memory: the later one loses its blocks and ends last."""
    one = engine(kv_tokens=16 * 21)  # 20 usable blocks
    send(one, 0.0, prompt=150, output=60)
    send(one, 0.0, prompt=100, output=60)

    first, second = finish(one)

    assert first.prompt_tokens == 150
    assert (first.preemption_count, second.preemption_count) == (0, 1)
    assert one.counter(layout.PREEMPTIONS) == 1
    assert one.counter(layout.COMPUTED_TOKENS) > 250
    assert one.counter(layout.PROMPT_TOKENS) == 250
    assert one.counter(layout.GENERATED_TOKENS) == 120


def test_cached_prompt_tokens_skip_prefill_in_whole_blocks():
    """The prefix cache shortens the first step, and the counters tell the cached tokens."""
    one = engine()
    send(one, 0.0, prompt=100, output=1, cached_ratio=0.5)

    (record,) = finish(one)

    assert record.ttft_seconds == pytest.approx(0.011 + 0.0001 * 52)
    assert one.counter(layout.CACHE_HITS) == one.counter(layout.CACHED_TOKENS) == 48
    assert one.counter(layout.CACHE_QUERIES) == 100


def test_queue_bound_rejects_what_exceeds_running_plus_waiting():
    """The 503 of --max-num-queued-reqs: counted, and gone at once."""
    one = engine(max_num_seqs=2, max_queued=3)
    answers = []
    for _ in range(5):
        request = one.requests.add(arrival=0.0, prompt_tokens=10, output_tokens=10)
        answers.append(one.submit(request, 0.0))
    record = one.requests.take(request)

    assert answers == [True, True, True, False, False]
    assert one.counter(layout.REJECTIONS) == 2
    assert record.outcome is Outcome.REJECTED
    assert not record.meets(1e9, 1e9)


def test_aborted_requests_reach_no_counter_of_ended_ones():
    """As in vLLM: TTFT and tokens were counted, success, e2e and queue time never are."""
    one = engine(max_num_seqs=1)
    running = send(one, 0.0, prompt=10, output=1000)
    waiting = send(one, 0.0, prompt=10, output=1000)
    one.abort(waiting, 0.5)
    one.abort(running, 1.0)
    ended = finish(one)

    assert [record.outcome for record in ended] == [Outcome.ABORTED, Outcome.ABORTED]
    assert one.histogram(layout.TTFT).count == 1
    assert one.counter(layout.GENERATED_TOKENS) > 50
    assert one.counter(layout.SUCCESSES) == 0
    assert one.histogram(layout.E2E).count == one.histogram(layout.QUEUE).count == 0
    assert one.in_system == 0
    assert one.row.ints[layout.FREE_BLOCKS] == one.row.ints[layout.BLOCKS]


def test_counters_agree_with_each_other():
    """Flow balances: first tokens plus gaps are tokens, steps hold all tokens, sums match."""
    one = engine(kv_tokens=4096)
    rng = np.random.default_rng(1)
    now = 0.0
    for _ in range(300):
        now += float(rng.exponential(0.1))
        send(one, now, prompt=int(rng.integers(1, 300)), output=int(rng.integers(1, 80)))
    records = finish(one)
    ttft, gaps = one.histogram(layout.TTFT), one.histogram(layout.ITL)
    steps = one.histogram(layout.ITERATION)

    assert ttft.count == one.counter(layout.SUCCESSES) == len(records) == 300
    assert one.counter(layout.GENERATED_TOKENS) == ttft.count + gaps.count
    assert one.counter(layout.GENERATED_TOKENS) == sum(r.output_tokens for r in records)
    assert one.counter(layout.PROMPT_TOKENS) == sum(r.prompt_tokens for r in records)
    assert steps.count == one.counter(layout.STEPS)
    assert steps.sum == one.counter(layout.GENERATED_TOKENS) + one.counter(layout.PROMPT_TOKENS)
    assert ttft.sum == pytest.approx(sum(r.ttft_seconds or 0.0 for r in records))
    decoding = one.histogram(layout.DECODE_TIME)
    assert gaps.sum == pytest.approx(decoding.sum)
    total = one.histogram(layout.E2E).sum
    parts = (layout.QUEUE, layout.PREFILL_TIME, layout.DECODE_TIME)
    assert total == pytest.approx(sum(one.histogram(part).sum for part in parts))
    tpot = one.histogram(layout.TPOT)
    assert tpot.sum == pytest.approx(sum(r.tpot_seconds or 0.0 for r in records))


@pytest.mark.parametrize(
    ("seqs", "budget", "kv_tokens"),
    [
        pytest.param(0, 256, 4096, id="no-sequences"),
        pytest.param(512, 256, 4096, id="budget-below-sequences"),
        pytest.param(8, 256, 16, id="no-memory"),
    ],
)
def test_limits_that_vllm_refuses_are_refused(seqs, budget, kv_tokens):
    """An engine that could not start is not simulated."""
    with pytest.raises(InvalidInputError):
        engine(max_num_seqs=seqs, budget=budget, kv_tokens=kv_tokens)


# Step times in ms of vLLM 0.32 with a model of 120 M parameters on two CPU cores, by the number of
# running sequences, and the line through those from four sequences up.
MEASURED_STEPS = {4: 17.7, 8: 23.8, 12: 25.5, 16: 31.7, 24: 43.4, 32: 53.7}
MEASURED_LAW = ServiceLaw(
    step_fixed_seconds=12.0e-3, step_per_sequence_seconds=1.29e-3, prefill_per_token_seconds=1e-6
)


@pytest.mark.parametrize("sequences", MEASURED_STEPS)
def test_tokens_come_as_far_apart_as_measured_on_a_real_engine(sequences):
    """The affine law is within 9 % of every measured step, from four sequences upwards."""
    limits = EngineLimits(max_num_seqs=64, max_num_batched_tokens=2048, kv_capacity_tokens=65536)
    one = Engine(law=MEASURED_LAW, limits=limits)
    for _ in range(sequences):
        send(one, 0.0, prompt=16, output=101)

    records = finish(one)

    measured = 1e-3 * MEASURED_STEPS[sequences]
    assert [record.tpot_seconds for record in records] == pytest.approx(
        [measured] * sequences, rel=0.09
    )
