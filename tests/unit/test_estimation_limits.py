"""Batch limits in force: where each is known from, and what data show and rule out."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from servingslo.estimation.estimate import Estimate, FleetSample
from servingslo.estimation.estimator import EstimatorState, update
from servingslo.estimation.pods.batch_limits import LimitSource, StatedLimits
from servingslo.estimation.sample import EngineLaunch, EngineSample, HistogramSample, PodSample

EDGES = (1.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, float("inf"))
SCRAPE_SECONDS = 15.0
STEPS = 100.0


def _histogram(edges: Sequence[float], values: Sequence[float], mean: float) -> HistogramSample:
    return HistogramSample(
        upper_bounds=tuple(edges),
        cumulative_counts=tuple(float(sum(v <= edge for v in values)) for edge in edges),
        sum=mean * len(values),
        count=float(len(values)),
    )


def _engine(
    number: int, *, running: float, waiting: float, tokens: float = 50.0, ended: float = 10.0
) -> EngineSample:
    """The engine at its scrape of this number, after steps of so many tokens, prompts of 100."""
    steps = STEPS * number
    return EngineSample(
        engine="0",
        gauges_age_seconds=0.0,
        counters_age_seconds=0.0,
        histograms_age_seconds=0.0,
        running=running,
        waiting=waiting,
        waiting_by_reason={"capacity": waiting, "deferred": 0.0},
        kv_usage_ratio=0.2,
        kv_capacity_tokens=400_000.0,
        prompt_tokens_total=0.5 * tokens * steps,
        cached_prompt_tokens_total=0.0,
        generation_tokens_total=0.5 * tokens * steps,
        finished_total={"length": ended * number},
        ttft_seconds=HistogramSample(upper_bounds=(), cumulative_counts=(), sum=steps, count=steps),
        prompt_tokens=_histogram((100.0, float("inf")), [100.0] * number, 100.0),
        iteration_tokens=replace(
            _histogram(EDGES, [tokens] * number, tokens), count=steps, sum=tokens * steps
        ),
    )


def _estimate(
    engines: Sequence[EngineSample],
    *,
    stated: StatedLimits = StatedLimits(),  # noqa: B008 - frozen
    card: str | None = "NVIDIA L4",
    launch: EngineLaunch | None = None,
    state: EstimatorState | None = None,
    image: str = "vllm/vllm-openai:v0.32.0",
) -> tuple[EstimatorState, Estimate]:
    state = state or EstimatorState()
    estimate = None
    for number, engine in enumerate(engines):
        pod = PodSample(
            name="a",
            template_hash="t",
            image=image,
            gpu_product=card,
            ready=True,
            age_seconds=3600.0,
            engines=(engine,),
            launch=launch,
        )
        sample = FleetSample(
            time_seconds=SCRAPE_SECONDS * number, pods=(pod,), stated_limits=stated, runtime="vllm"
        )
        state, estimate = update(state, sample)
    assert estimate is not None
    return state, estimate


def _told(estimate: Estimate) -> tuple[tuple[int, str], tuple[int, str]]:
    sequences = estimate.in_force.max_num_seqs
    budget = estimate.in_force.max_num_batched_tokens
    assert sequences is not None
    assert budget is not None
    return (sequences.value, sequences.source.value), (budget.value, budget.source.value)


def test_stated_goes_before_arguments_and_these_before_defaults() -> None:
    """Each limit by itself."""
    given = replace(_engine(1, running=1.0, waiting=0.0), max_num_seqs=64)
    stated = StatedLimits(max_num_batched_tokens=4096)
    assert _told(_estimate([given], stated=stated)[1]) == ((64, "args"), (4096, "stated"))
    assert _told(_estimate([given])[1]) == ((64, "args"), (2048, "default"))
    over = StatedLimits(max_num_seqs=32)
    assert _told(_estimate([given], stated=over)[1])[0] == (32, "stated")


def test_what_an_engine_exports_goes_before_its_arguments_and_behind_what_is_stated() -> None:
    """A file may give another than the flag; 0 is none."""
    given = replace(_engine(1, running=1.0, waiting=0.0), max_num_seqs=64)
    exporting = replace(given, num_seqs_in_force=48.0, batched_tokens_in_force=0.0)
    assert _told(_estimate([exporting])[1]) == ((48, "exported"), (2048, "default"))
    over = StatedLimits(max_num_seqs=32)
    assert _told(_estimate([exporting], stated=over)[1])[0] == (32, "stated")


def test_running_that_stands_while_requests_wait_is_the_limit() -> None:
    """After three scrapes at 48 of an assumed 256; two are not enough."""
    queue = [_engine(n, running=48.0, waiting=9.0) for n in range(1, 6)]
    assert _told(_estimate(queue[:3])[1])[0] == (256, "default")
    assert _told(_estimate(queue)[1])[0] == (48, "learnt")


def test_running_that_moves_while_requests_wait_is_no_limit() -> None:
    """The token budget holds it back, at another value each time."""
    queue = [
        _engine(n, running=running, waiting=9.0)
        for n, running in enumerate((20.0, 48.0, 31.0, 48.0, 40.0, 48.0, 22.0, 35.0), start=1)
    ]
    assert _told(_estimate(queue)[1])[0] == (256, "default")


def test_running_that_stands_because_nothing_ended_is_no_limit() -> None:
    """Of an engine whose steps take as long as scrapes are apart, as a real one did under load."""
    queue = [_engine(n, running=34.0, waiting=9.0, ended=0.0) for n in range(1, 8)]
    assert _told(_estimate(queue)[1])[0] == (256, "default")


def test_a_full_cache_says_nothing_of_the_limits() -> None:
    """Requests wait for memory then."""
    queue = [
        replace(_engine(n, running=48.0, waiting=9.0), kv_usage_ratio=0.97) for n in range(1, 6)
    ]
    assert _told(_estimate(queue)[1])[0] == (256, "default")


@pytest.mark.parametrize(("running", "corrected"), [(300.0, 512), (5000.0, 5000)])
def test_a_default_below_what_runs_is_corrected(running: float, corrected: int) -> None:
    """To the next default that there is, else to what was seen."""
    sequences, _ = _told(_estimate([_engine(n, running=running, waiting=0.0) for n in (1, 2)])[1])
    assert sequences == (corrected, "learnt")


def test_full_steps_while_requests_wait_are_the_budget() -> None:
    """Of 512 tokens, while the number of sequences still rises; one such window is not enough."""
    queue = [
        _engine(n, running=running, waiting=9.0, tokens=512.0)
        for n, running in enumerate((10.0, 20.0, 30.0, 40.0), start=1)
    ]
    assert _told(_estimate(queue[:2])[1])[1] == (2048, "default")
    assert _told(_estimate(queue)[1])[1] == (512, "learnt")


def test_steps_longer_than_the_default_budget_refute_it() -> None:
    """Steps of 5,000 tokens with prompts of 100 cannot be of a budget of 2,048."""
    steps = [_engine(n, running=10.0, waiting=0.0, tokens=5000.0) for n in (1, 2)]
    assert _told(_estimate(steps)[1])[1] == (8192, "learnt")


def test_steps_that_several_processes_count_say_nothing_of_the_budget() -> None:
    """Each API server counts the steps that bring tokens to it."""
    queue = [
        _engine(n, running=running, waiting=9.0, tokens=512.0)
        for n, running in enumerate((10.0, 20.0, 30.0, 40.0), start=1)
    ]
    _, estimate = _estimate(queue, launch=EngineLaunch(api_server_count=4))
    assert _told(estimate)[1] == (2048, "default")


def test_assumed_limits_widen_the_stated_error() -> None:
    """By an independent error each; what is learnt is not assumed."""
    limits = _estimate([_engine(1, running=1.0, waiting=0.0)])[1].in_force
    assert limits.assumed_count == 2
    assert limits.max_num_seqs is not None
    assert limits.max_num_seqs.source is LimitSource.DEFAULT


def test_no_default_holds_for_a_limit_that_is_given_and_not_read() -> None:
    """The other one is assumed; data may show it all the same."""
    launch = EngineLaunch(
        unread="--max-num-seqs: '$N' is not known", unread_limits=("max_num_seqs",)
    )
    queue = [_engine(n, running=48.0, waiting=9.0) for n in range(1, 6)]
    _, estimate = _estimate(queue[:2], launch=launch)
    assert estimate.max_num_seqs is None
    assert estimate.max_num_batched_tokens == 2048
    assert estimate.in_force.unread == launch.unread
    assert _told(_estimate(queue, launch=launch)[1])[0] == (48, "learnt")


@pytest.mark.parametrize(
    ("image", "card", "limits", "said"),
    [
        pytest.param("vllm/vllm-openai:v0.32.0", "NVIDIA B200", (1024, 16384), False, id="known"),
        pytest.param("lmcache/vllm-openai:v0.3.9", "NVIDIA B200", (1024, 8192), True, id="b200"),
        pytest.param("vllm/vllm-openai:nightly", "NVIDIA H100", (1024, 8192), True, id="h100"),
        pytest.param("nvcr.io/nvidia/vllm:25.09-py3", "NVIDIA L4", (256, 2048), False, id="same"),
    ],
)
def test_a_version_that_is_not_known_is_said_where_defaults_depend_on_it(
    image: str, card: str, limits: tuple[int, int], said: bool
) -> None:
    """The smaller ones are assumed, and the image is named."""
    _, estimate = _estimate([_engine(1, running=1.0, waiting=0.0)], card=card, image=image)
    assert tuple(value for value, _ in _told(estimate)) == limits
    assert (image in estimate.in_force.unread) == said


@pytest.mark.parametrize(
    ("version", "launch", "said"),
    [
        pytest.param("v0.6.6", EngineLaunch(), True, id="whole-prompts"),
        pytest.param("v0.11.0", EngineLaunch(chunked_prefill=False), True, id="switched-off"),
        pytest.param("v0.6.6", EngineLaunch(max_model_len=8192), False, id="length-given"),
        pytest.param("v0.6.6", EngineLaunch(chunked_prefill=True), False, id="chunks"),
        pytest.param("v0.11.0", EngineLaunch(), False, id="newer"),
    ],
)
def test_a_budget_of_a_length_that_is_not_known_is_said(
    version: str, launch: EngineLaunch, said: bool
) -> None:
    """With the flag that would give it."""
    engines = [_engine(1, running=1.0, waiting=0.0)]
    _, estimate = _estimate(engines, launch=launch, image=f"vllm/vllm-openai:{version}")
    assert ("--max-model-len" in estimate.in_force.unread) == said
