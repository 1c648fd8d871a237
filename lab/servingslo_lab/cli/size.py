"""`servingslo size`: how many replicas, before anything is deployed."""

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from servingslo.cli.output import OutputFormat, answer_no, as_json
from servingslo.controller.recordings.validation import MOST_BATCHED_TOKENS
from servingslo.errors import InvalidInputError
from servingslo.models.fleet.latency import Routing
from servingslo.models.known_engines import KnownEngine
from servingslo.models.running.bursts import CORRELATION_PER_BURST
from servingslo.models.workload import Workload
from servingslo.policy.inputs import ReplicaTargets
from servingslo.units import SECONDS_PER_MINUTE, parse_duration_seconds
from servingslo_lab.cli.sizing.answer import Answer, Question, answered
from servingslo_lab.cli.sizing.inputs import (
    MOST_GPUS,
    gpu_count,
    hourly_price,
    in_range,
    parse_objectives,
    stated_engine,
    stated_workload,
    traced_workload,
)
from servingslo_lab.cli.sizing.prices import Price, prices
from servingslo_lab.cli.sizing.text import answer_text, known_lines
from servingslo_lab.sim.fleets.engine_kinds import ENGINE_KINDS

# Standard deviation over mean of the lengths in the Azure LLM inference trace 2023, conversation.
# Source: github.com/Azure/AzurePublicDataset, AzureLLMInferenceTrace_conv.csv.
PROMPT_VARIATION = 0.96
OUTPUT_VARIATION = 0.77
# Bounds of the resource's fields of the same names.
MOST_REPLICAS = 10_000
LARGEST_UTILIZATION_TARGET = 0.95
MOST_SEQUENCES = 65_536
MOST_TOKENS = 10_000_000
FASTEST_RATE = 1e6


class RoutingChoice(StrEnum):
    """How requests reach the replicas."""

    POOLED = "pooled"
    RANDOM = "random"


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeResult:
    """What `size -o json` prints. prices: only with --sweep. known: with --card and --model."""

    answer: Answer
    prices: tuple[Price, ...] = ()
    known: KnownEngine | None = None


def size(
    objective: Annotated[
        list[str] | None,
        typer.Option(
            help="METRIC:pPERCENTILE:THRESHOLD, such as ttft:p99:1s; metrics are ttft, tpot, "
            "latency, queueTime. Repeatable; at least one."
        ),
    ] = None,
    arrival_rate: Annotated[
        float | None,
        typer.Option(help="Requests per second. With --trace: its busiest minute by default."),
    ] = None,
    prompt_tokens: Annotated[float | None, typer.Option(help="Mean prompt tokens.")] = None,
    output_tokens: Annotated[float | None, typer.Option(help="Mean output tokens.")] = None,
    prompt_variation: Annotated[
        float | None,
        typer.Option(
            help=f"Standard deviation over mean of prompt lengths, 0 to 5; {PROMPT_VARIATION} by "
            "default."
        ),
    ] = None,
    output_variation: Annotated[
        float | None,
        typer.Option(
            help=f"Standard deviation over mean of output lengths, 0 to 5; {OUTPUT_VARIATION} by "
            "default."
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="CSV with the lengths of real requests, instead of the four above."),
    ] = None,
    cached_ratio: Annotated[
        float, typer.Option(help="Share of prompt tokens that the prefix cache serves, 0 to 1.")
    ] = 0.0,
    arrival_dispersion: Annotated[
        float, typer.Option(help="Variance over mean of arrival counts; 1 is Poisson, more bursty.")
    ] = 1.0,
    burst_length: Annotated[
        str | None,
        typer.Option(
            help="Length of a high or low phase of bursty arrivals, such as 2s; by default as long "
            "as a request runs."
        ),
    ] = None,
    card: Annotated[
        str | None,
        typer.Option(help="The GPU, such as h100 or NVIDIA-L40S; with --model. Other flags win."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="The model on it: llama-3.1-8b, or a name with its size: my-13b."),
    ] = None,
    fleet: Annotated[
        str | None,
        typer.Option(help=f"An engine of the simulator: {', '.join(ENGINE_KINDS)}."),
    ] = None,
    service_law: Annotated[
        str | None,
        typer.Option(
            help="Time of a step: a fixed, b per sequence, c per prompt token, d per context "
            "token: a=6.5ms,b=0.04ms,c=0.03ms,d=0.05us. `servingslo fit` finds it."
        ),
    ] = None,
    max_num_seqs: Annotated[int | None, typer.Option(help="Engine limit of that name.")] = None,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(help="Engine limit of that name.")
    ] = None,
    kv_tokens: Annotated[
        float | None, typer.Option(help="Tokens that the KV cache of one engine holds.")
    ] = None,
    engines_per_replica: Annotated[
        int, typer.Option(help="Data-parallel engines in one replica.")
    ] = 1,
    routing: Annotated[
        RoutingChoice, typer.Option(help="pooled: least loaded first. random: also round robin.")
    ] = RoutingChoice.POOLED,
    utilization_target: Annotated[
        float, typer.Option(help="Arrival rate over saturation rate, at most; 0.1 to 0.95.")
    ] = 0.85,
    kv_target: Annotated[
        float, typer.Option(help="Share of the KV cache in use, at most; 0.1 to 1.")
    ] = 0.9,
    tolerated_failures: Annotated[
        int, typer.Option(help="Replicas that may fail while the objectives are still met.")
    ] = 0,
    min_replicas: Annotated[int, typer.Option(help="Never fewer.")] = 1,
    max_replicas: Annotated[
        int | None, typer.Option(help="Never more; the answer is no if these are too few.")
    ] = None,
    growth_per_minute: Annotated[
        float, typer.Option(help="Requests/s by which the rate may rise within a minute.")
    ] = 0.0,
    cold_start: Annotated[
        str, typer.Option(help="Time from ordering a replica until it serves; for the growth.")
    ] = "2m",
    gpu_hourly: Annotated[
        float | None, typer.Option(help="Price of a GPU for an hour; that of --fleet by default.")
    ] = None,
    gpus_per_replica: Annotated[int, typer.Option(help="GPUs of one replica.")] = 1,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Also show what each objective costs.")
    ] = False,
    output: Annotated[
        OutputFormat, typer.Option("--output", "-o", help="Output format.")
    ] = OutputFormat.TEXT,
) -> None:
    """Show how many replicas the objectives need, which constraint binds, and the cost.

    The sizing is the operator's own. Exit code 1: no count meets the objectives.

    Example: servingslo size --fleet h100-8b --arrival-rate 41 --prompt-tokens 1155
    --output-tokens 211 --objective ttft:p99:1s --objective tpot:p95:50ms --sweep
    """
    if not objective:
        raise InvalidInputError("--objective", None, "at least one, such as ttft:p99:1s")
    objectives = parse_objectives(objective)
    _check_engine(max_num_seqs, max_num_batched_tokens, kv_tokens, engines_per_replica)
    engine = stated_engine(
        fleet,
        service_law,
        card=card,
        model=model,
        gpus=gpu_count(gpus_per_replica),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        kv_tokens=kv_tokens,
    )
    workload = _workload(
        arrival_rate,
        _Lengths(prompt_tokens, prompt_variation, output_tokens, output_variation),
        trace,
        cached_ratio=in_range("--cached-ratio", cached_ratio, 0.0, 1.0, "0 to 1"),
        dispersion=in_range("--arrival-dispersion", arrival_dispersion, 0.0, 1000.0, "0 to 1000"),
    )
    if burst_length is not None:
        memory = parse_duration_seconds(burst_length, "--burst-length") * CORRELATION_PER_BURST
        if not 0.0 < memory < math.inf:
            raise InvalidInputError(
                "--burst-length", burst_length, "a duration above 0, such as 2s"
            )
        if arrival_dispersion <= 1.0:
            allowed = "only with an --arrival-dispersion above 1: without it there are no bursts"
            raise InvalidInputError("--burst-length", burst_length, allowed)
        workload = replace(workload, arrival_correlation_seconds=memory)
    fastest = f"0 to {FASTEST_RATE:.12g}"
    growth = in_range("--growth-per-minute", growth_per_minute, 0.0, FASTEST_RATE, fastest)
    cold_seconds = parse_duration_seconds(cold_start, "--cold-start")
    rise = growth / SECONDS_PER_MINUTE * cold_seconds
    if workload.arrival_rate_per_second + rise > FASTEST_RATE:
        allowed = f"a rise within {cold_start} (--cold-start) to at most {FASTEST_RATE:g}/s"
        raise InvalidInputError("--growth-per-minute", growth_per_minute, allowed)
    hourly = engine.price_per_hour if gpu_hourly is None else gpu_hourly
    question = Question(
        workload=workload,
        law=engine.law,
        limits=engine.limits,
        objectives=objectives,
        routing=Routing(routing.value),
        utilization_target_ratio=in_range(
            "--utilization-target",
            utilization_target,
            0.1,
            LARGEST_UTILIZATION_TARGET,
            f"0.1 to {LARGEST_UTILIZATION_TARGET}",
        ),
        kv_cache_target_ratio=in_range("--kv-target", kv_target, 0.1, 1.0, "0.1 to 1"),
        replicas=_replicas(min_replicas, max_replicas, tolerated_failures),
        growth_per_second2=growth / SECONDS_PER_MINUTE,
        cold_start_seconds=cold_seconds,
        gpu_hourly=None if hourly is None else hourly_price(hourly),
        gpus_per_replica=gpu_count(gpus_per_replica),
        engines_per_replica=engines_per_replica,
    )
    answer = answered(question)
    told = prices(question) if sweep else ()
    result = SizeResult(answer=answer, prices=told, known=engine.known)
    if output is OutputFormat.JSON:
        typer.echo(as_json(result))
    else:
        lines = [answer_text(question, answer, engine.name, result.prices)]
        typer.echo("\n".join([*lines, *known_lines(engine.known)]))
    if not answer.feasible:
        raise answer_no()


@dataclass(frozen=True, slots=True)
class _Lengths:
    """Mean lengths and how they vary; None where they are not stated."""

    prompt_tokens: float | None
    prompt_variation: float | None
    output_tokens: float | None
    output_variation: float | None


def _workload(
    rate: float | None,
    lengths: _Lengths,
    trace: Path | None,
    *,
    cached_ratio: float,
    dispersion: float,
) -> Workload:
    """Requests from a trace, or as stated. Raises: InvalidInputError for what is missing."""
    if rate is not None and not 0.0 < rate <= FASTEST_RATE:
        raise InvalidInputError("--arrival-rate", rate, f"above 0, at most {FASTEST_RATE:g}")
    if trace is not None:
        for flag, stated in (
            ("--prompt-tokens", lengths.prompt_tokens),
            ("--output-tokens", lengths.output_tokens),
            ("--prompt-variation", lengths.prompt_variation),
            ("--output-variation", lengths.output_variation),
        ):
            if stated is not None:
                raise InvalidInputError(flag, stated, "not with --trace, which has the lengths")
        return traced_workload(trace, rate, cached_ratio=cached_ratio, dispersion=dispersion)
    if rate is None:
        raise InvalidInputError("--arrival-rate", None, "requests per second, or --trace")
    allowed = f"1 to {MOST_TOKENS} tokens, or --trace"
    return stated_workload(
        rate,
        prompt_tokens=_tokens("--prompt-tokens", lengths.prompt_tokens, allowed),
        prompt_variation=_variation(
            "--prompt-variation", lengths.prompt_variation, PROMPT_VARIATION
        ),
        output_tokens=_tokens("--output-tokens", lengths.output_tokens, allowed),
        output_variation=_variation(
            "--output-variation", lengths.output_variation, OUTPUT_VARIATION
        ),
        cached_ratio=cached_ratio,
        dispersion=dispersion,
    )


def _variation(flag: str, value: float | None, default: float) -> float:
    return default if value is None else in_range(flag, value, 0, 5, "0 to 5")


def _tokens(flag: str, value: float | None, allowed: str) -> float:
    if value is None:
        raise InvalidInputError(flag, None, allowed)
    return in_range(flag, value, 1.0, MOST_TOKENS, allowed)


def _check_engine(
    max_num_seqs: int | None, budget: int | None, kv_tokens: float | None, engines: int
) -> None:
    """Raises: InvalidInputError for a limit that no engine can have."""
    if kv_tokens is not None and not (kv_tokens >= 1 and math.isfinite(kv_tokens)):
        raise InvalidInputError("--kv-tokens", kv_tokens, "1 or more")
    if max_num_seqs is not None:
        in_range("--max-num-seqs", max_num_seqs, 1, MOST_SEQUENCES, f"1 to {MOST_SEQUENCES}")
    if budget is not None:
        most = MOST_BATCHED_TOKENS
        in_range("--max-num-batched-tokens", budget, 1, most, f"1 to {most}")
    in_range("--engines-per-replica", engines, 1, MOST_GPUS, f"1 to {MOST_GPUS}")


def _replicas(minimum: int, maximum: int | None, failures: int) -> ReplicaTargets:
    """The bounds. Raises: InvalidInputError where they contradict each other."""
    in_range("--min-replicas", minimum, 1, MOST_REPLICAS, f"1 to {MOST_REPLICAS}")
    in_range("--tolerated-failures", failures, 0, MOST_REPLICAS, f"0 to {MOST_REPLICAS}")
    if maximum is not None:
        allowed = f"{minimum} (--min-replicas) to {MOST_REPLICAS}"
        in_range("--max-replicas", maximum, minimum, MOST_REPLICAS, allowed)
    return ReplicaTargets(minimum=minimum, maximum=maximum, tolerated_failures=failures)
