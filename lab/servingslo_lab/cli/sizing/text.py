"""The answer to the sizing question, for people."""

from collections.abc import Iterator, Sequence

from servingslo.explain.format import counted, mean_tokens, number, percent
from servingslo.models.known_engines import KnownEngine
from servingslo.units import format_duration
from servingslo_lab.cli.sizing.answer import Answer, CountAnswer, NeedAnswer, Question
from servingslo_lab.cli.sizing.inputs import objective_text
from servingslo_lab.cli.sizing.prices import COLD_START, Price

_OVERLOADED = "overload"
_NONE = "-"


def answer_text(question: Question, answer: Answer, engine: str, prices: Sequence[Price]) -> str:
    """The whole answer, one statement a line."""
    return "\n".join(_lines(question, answer, engine, prices))


def _lines(
    question: Question, answer: Answer, engine: str, prices: Sequence[Price]
) -> Iterator[str]:
    yield _headline(answer, engine)
    yield (
        f"A request: {mean_tokens(answer.prompt_tokens_mean)} prompt tokens, "
        f"{mean_tokens(answer.output_tokens_mean)} output tokens on average"
    )
    yield "Needs:"
    for need in answer.needs:
        yield f"  {_need_name(question, need)}: {_need(need)}"
    failures = question.replicas.tolerated_failures
    if failures:
        yield f"  tolerated failures: {failures} more"
    yield ""
    yield from _table(_count_rows(question, answer))
    yield ""
    carry = (
        f"{counted(answer.replicas, 'replica')} {'carries' if answer.replicas == 1 else 'carry'}"
    )
    yield (
        f"One replica saturates at {number(answer.saturation_rate_per_second)} requests/s with "
        f"{number(answer.concurrency_cap)} running; {carry} up to "
        f"{number(answer.greatest_rate_per_second)} requests/s within {_kept(answer)}"
    )
    yield f"Queue bound: {counted(answer.queue_limit, 'waiting request')} per replica"
    yield from _batching(answer)
    if answer.cost is not None:
        yield (
            f"Cost: ${number(answer.cost.per_hour)}/h, "
            f"${number(answer.cost.per_million_output_tokens)} per million output tokens, "
            f"${number(answer.cost.per_million_tokens)} per million tokens with prompts"
        )
    if prices:
        yield ""
        yield "What changes the count:"
        yield from (f"  {line}" for line in price_lines(prices))


def known_lines(known: KnownEngine | None) -> Iterator[str]:
    """Where a law of names comes from, and how far such laws were away; nothing for another law."""
    if known is None:
        return
    origin = "a roofline of size, bandwidth and compute: nobody measured this model on this card"
    if known.error_ratios is not None:
        mean, high = known.error_ratios
        origin = f"measured kernels; steps off by {percent(mean)} (95 % of them {percent(high)})"
    yield ""
    yield f"Law: {origin}; no engine was driven"
    for what, (mean, high, served) in known.left_out.items():
        yield (
            f"  rooflines fitted without a {what}: steps off by {percent(mean)} (95 % of "
            f"them {percent(high)}), what a replica serves by {percent(served)}"
        )


def price_lines(prices: Sequence[Price]) -> Iterator[str]:
    """What changes the count, one a line, then what does not, one line for each thing.

    Cold starts have prices where demand grows; else it is said that they change nothing.
    """
    alike: dict[str, list[str]] = {}
    for price in prices:
        if price.replicas_more == 0:
            alike.setdefault(price.what, []).append(price.instead)
        else:
            yield price_text(price)
    for what, values in alike.items():
        yield f"{what}: {', '.join(values)}: no change"
    if prices and not any(price.what == COLD_START for price in prices):
        yield f"{COLD_START}: no change while demand does not grow"


def price_text(price: Price) -> str:
    """'ttft p99: 300ms instead of 500ms: 1 replica more, $2.9/h'."""
    head = f"{price.what}: {price.instead} instead of {price.stated}"
    if price.replicas is None or price.replicas_more is None:
        return f"{head}: no count is enough"
    more = price.replicas_more
    noun = "replica" if abs(more) == 1 else "replicas"
    change = f"{abs(more)} {noun} {'more' if more > 0 else 'fewer'}"
    if price.cost_more_per_hour is None:
        return f"{head}: {change}"
    amount = number(abs(price.cost_more_per_hour))
    money = f"${amount}" if price.currency == "USD" else f"{amount} {price.currency}"
    return f"{head}: {change}, {'' if more > 0 else '-'}{money}/h"


def _headline(answer: Answer, engine: str) -> str:
    noun = "replica" if answer.replicas == 1 else "replicas"
    load = f"{number(answer.rate_per_second)} requests/s"
    if answer.feasible:
        return f"{answer.replicas} {noun} of {engine} for {load}; {answer.binding} binds"
    return (
        f"no count up to {answer.largest_count} of {engine} meets every objective at {load}; "
        f"shown: {answer.replicas} {noun}"
    )


def _kept(answer: Answer) -> str:
    """What the greatest rate keeps: an objective that no count meets is not among it."""
    objectives = [need for need in answer.needs if need.objective is not None]
    met = [need for need in objectives if need.replicas is not None]
    if len(met) == len(objectives):
        return "the objectives"
    return "the objectives that can be met" if met else "the targets of utilization and KV cache"


def _need_name(question: Question, need: NeedAnswer) -> str:
    for objective in question.objectives:
        if need.objective == f"{objective.metric.value} p{objective.percentile:g}":
            return objective_text(objective)
    return need.constraint


def _need(need: NeedAnswer) -> str:
    if need.replicas is not None:
        return str(need.replicas)
    if need.least_feasible_seconds is None:
        return "not met by any count"
    least = format_duration(need.least_feasible_seconds)
    return f"cannot be met: the least feasible value is {least}"


def _count_rows(question: Question, answer: Answer) -> list[list[str]]:
    names = [f"{o.metric.value} p{o.percentile:g}" for o in question.objectives]
    head = ["", "replicas", "utilization", "KV p95", "ITL mean", *names, "meets", "$/h"]
    return [head, *(_count_row(answer, count) for count in answer.counts)]


def _count_row(answer: Answer, count: CountAnswer) -> list[str]:
    predicted = [
        _OVERLOADED if o.predicted_seconds is None else format_duration(o.predicted_seconds)
        for o in count.objectives
    ]
    usage, gap = count.kv_usage_p95_ratio, count.itl_mean_seconds
    return [
        "*" if count.replicas == answer.replicas else "",
        str(count.replicas),
        percent(count.utilization_ratio),
        _OVERLOADED if usage is None else percent(usage),
        _OVERLOADED if gap is None else format_duration(gap),
        *predicted,
        "yes" if count.meets else "no",
        _NONE if count.cost_per_hour is None else number(count.cost_per_hour),
    ]


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def _batching(answer: Answer) -> Iterator[str]:
    batching = answer.batching
    yield (
        f"Batch limits: best max_num_seqs {batching.best_max_num_seqs} and "
        f"max_num_batched_tokens {batching.best_max_num_batched_tokens}, stated "
        f"{batching.max_num_seqs} and {batching.max_num_batched_tokens}; "
        f"{_gain(answer)}"
    )


def _gain(answer: Answer) -> str:
    """What the best limits are worth."""
    batching, best = answer.batching, answer.batching.best_replicas
    if batching.best_meets and not answer.feasible:
        noun = "replica" if best == 1 else "replicas"
        return f"with the best, {best} {noun} meet every objective"
    either = "" if batching.best_meets else ", and do not meet every objective either"
    if batching.replicas_saved > 0:
        return f"the best save {batching.replicas_saved} of {answer.replicas} replicas{either}"
    return f"the best save no replica{either}"
