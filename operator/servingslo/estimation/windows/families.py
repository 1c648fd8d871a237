"""The series that decisions need: which of them an engine exports, and their names.

A page may be cut at the end of a line, buckets may be dropped to save series, an older engine may
lack a family. Each missing family is reported by its series name, so that a person can search for
it.
"""

from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from operator import attrgetter

from servingslo.estimation.sample import EngineSample, PodSample
from servingslo.runtimes import catalogue
from servingslo.runtimes.profile import MetricKind, MetricNames, RuntimeProfile

GAUGES = ("running", "waiting")
COUNTERS = ("prompt_tokens_total", "generation_tokens_total", "finished_total")
_HISTOGRAMS = (
    "ttft_seconds",
    "inter_token_seconds",
    "time_per_output_token_seconds",
    "latency_seconds",
    "queue_seconds",
    "prompt_tokens",
    "output_tokens",
    "iteration_tokens",
)
_COMPARED = (*GAUGES, *COUNTERS, *_HISTOGRAMS)
_values = attrgetter(*_COMPARED)
_FINISHED = _COMPARED.index("finished_total")
# The summary that observes a latency if the engine exports no histogram of it.
SUMMARY_OF = {"latency_seconds": "latency_quantiles", "queue_seconds": "queue_quantiles"}
# Without these there is no law, whatever the objectives are.
_OF_LAWS = ("ttft_seconds", "inter_token_seconds")
# Requests that ended without a single token before an engine counts as one that generates none:
# SGLang counts tokens every 40 steps, after the first short requests.
LEAST_WITHOUT_TOKEN = 10.0
# Per engine; further series are only counted.
MOST_NAMED_SERIES = 3
# Some engines export a family only after the first request ends, which may take minutes.
FIRST_REQUEST_SECONDS = 300.0


def exported_fields(engine: EngineSample) -> frozenset[str]:
    """Return the fields whose series the engine exports, even if the value is not a number."""
    present = [value is not None for value in _values(engine)]
    present[_FINISHED] = bool(engine.finished_total)
    found = _named(tuple(present))
    if not engine.nan_metrics and not engine.impossible_metrics:
        return found
    broken = {*engine.nan_metrics, *(one.split("=")[0] for one in engine.impossible_metrics)}
    if (profile := _profile(engine)) is not None:
        found |= {
            metric.field
            for metric in profile.metrics
            if metric.field in _COMPARED and broken & {*metric.names}
        }
    return found


@lru_cache(maxsize=256)
def _named(present: tuple[bool, ...]) -> frozenset[str]:
    """The compared fields that are present; one set for all engines that export the same."""
    return frozenset(name for name, there in zip(_COMPARED, present, strict=True) if there)


def not_numbers(engine: EngineSample) -> tuple[str, ...]:
    """Return its metrics that are no number; the summary of no request is none, and is whole."""
    if not engine.nan_metrics or (profile := _profile(engine)) is None:
        return engine.nan_metrics
    summaries = {name for field in SUMMARY_OF.values() for name in _names(profile, field)}
    return tuple(name for name in engine.nan_metrics if name not in summaries)


def is_busy(engine: EngineSample) -> bool:
    """Whether it serves or has served: some engines export a family with the first request."""
    counted = (engine.running, engine.waiting, engine.generation_tokens_total)
    return any(counted) or any(engine.finished_total.values())


def generates_no_token(engine: EngineSample) -> bool:
    """Whether it ends requests and never generated a token: embeddings, ranks, rewards, classes.

    Its runtime counts tokens, and none were; or the runtime has no such counter.
    """
    if engine.generation_tokens_total:
        return False
    if engine.generation_tokens_total is None:
        profile = _profile(engine)
        if profile is None or not profile.has_tokens or _names(profile, "generation_tokens_total"):
            return False
    return requests_served(engine) >= LEAST_WITHOUT_TOKEN


def requests_served(engine: EngineSample) -> float:
    """Requests that ended; those with a first token if the engine does not count ended ones."""
    if engine.finished_total:
        return sum(engine.finished_total.values())
    return 0.0 if engine.ttft_seconds is None else engine.ttft_seconds.count


def generate_no_token(pods: Iterable[PodSample]) -> bool:
    """Whether no engine of these pods generates tokens, of those that ended requests."""
    each = [engine for pod in pods for engine in pod.engines]
    generating = any(engine.generation_tokens_total for engine in each)
    return not generating and any(map(generates_no_token, each))


def count_no_token(pods: Sequence[PodSample]) -> bool:
    """Whether engines that have served for a while show no generated token in any series.

    Their counter of tokens is not exported, so whether they generate any is not known.
    """
    engines = _engines_if_served(pods)
    if not any(requests_served(engine) >= LEAST_WITHOUT_TOKEN for engine in engines):
        return False
    return all(map(_shows_no_token, engines)) and any(map(_has_histograms, engines))


def have_no_gaps(pods: Iterable[PodSample]) -> bool:
    """Whether the runtime of these pods generates tokens and has no metric of the gaps between."""
    known = {engine.runtime: _profile(engine) for pod in pods for engine in pod.engines}
    return bool(known) and all(
        one is not None and one.has_tokens and not _names(one, "inter_token_seconds")
        for one in known.values()
    )


def missing_series(engine: EngineSample, wanted: Iterable[str]) -> tuple[str, ...]:
    """Return the names of these fields' series that the engine does not export.

    Empty if its runtime is unknown, as in observations that were stored without it.
    """
    exported = exported_fields(engine)
    if exported.issuperset(wanted) or (profile := _profile(engine)) is None:
        return ()
    lacking = set(wanted) - exported
    lost = (metric for metric in profile.metrics if metric.field in lacking)
    series = (_series(metric, engine.sumless_metrics) for metric in lost)
    return tuple(dict.fromkeys(series))


def missing_beside_siblings(
    seen: Sequence[tuple[PodSample, EngineSample]], long_known: Collection[tuple[str, str]] = ()
) -> dict[tuple[str, str], tuple[str, ...]]:
    """Return, by pod and engine, the series that similar engines export and this one does not.

    seen: engines in use, with their pods. Only engines that have served for a while are compared.
    long_known: engines whose histograms must have been read by now; in a large cluster histograms
    are read in turns.
    """
    busy = [
        (pod, engine, _kind(pod, engine), exported_fields(engine))
        for pod, engine in seen
        if _has_served(pod, engine)
    ]
    kinds: dict[tuple[object, ...], frozenset[str]] = {}
    for _, _, kind, exported in busy:
        kinds[kind] = kinds.get(kind, exported) | exported
    found = {}
    for pod, engine, kind, exported in busy:
        wanted = kinds[kind] - exported
        if not wanted:
            continue
        if (pod.name, engine.engine) not in long_known and exported.isdisjoint(_HISTOGRAMS):
            wanted = wanted - {*_HISTOGRAMS}
        if lacking := missing_series(engine, wanted):
            found[pod.name, engine.engine] = lacking
    return found


def exported_by_none(
    pods: Sequence[PodSample],
    histograms: Iterable[str],
    long_known: Collection[tuple[str, str]] = (),
) -> tuple[str, ...]:
    """Return needed series that no engine of these pods exports, though one has served.

    histograms: fields that observe the objectives. long_known: as in `missing_beside_siblings`.
    """
    engines = _engines_if_served(pods)
    wanted = {*GAUGES, *COUNTERS}
    if _are_read(pods, long_known):
        wanted |= {*histograms} if generate_no_token(pods) else {*_OF_LAWS, *histograms}
    return _missing_in_all(engines, wanted)


def missing_observations(
    pods: Sequence[PodSample], histogram: str, long_known: Collection[tuple[str, str]] = ()
) -> str:
    """Why an objective's share is unknown, by its series; '' if one of them can be read.

    histogram: the field that observes the objective. long_known: as in `missing_beside_siblings`.
    """
    engines = _engines_if_served(pods)
    summary = SUMMARY_OF.get(histogram)
    if not engines or any(getattr(engine, histogram) is not None for engine in engines):
        return ""
    if summary is not None and any(
        getattr(engine, summary) or len(not_numbers(engine)) < len(engine.nan_metrics)
        for engine in engines
    ):
        return ""
    read = _are_read(pods, long_known)
    named = _missing_in_all(engines, {histogram}) if read else ()
    if not named and summary is not None:
        profile = _profile(engines[0])
        named = () if profile is None else _names(profile, summary)
    if named:
        return f"{', '.join(named)} is not exported"
    broken = {name for engine in engines for name in not_numbers(engine)}
    own = [m for e in engines if (p := _profile(e)) for m in p.metrics if m.field == histogram]
    return next((f"{name} is not a number" for m in own for name in m.names if name in broken), "")


def missing_counters(pods: Sequence[PodSample]) -> tuple[str, ...]:
    """Return counters that engines lack if none counts requests, though one has served a while."""
    engines = _engines_if_served(pods)
    if not all(map(_counts_no_request, engines)):
        return ()
    return _missing_in_all(engines, COUNTERS)


def missing_gauges(pods: Sequence[PodSample]) -> tuple[str, ...]:
    """Return needed gauge series that engines of these pods do not export.

    Only for engines that export other metrics of their runtime: there the scrape works.
    """
    lacking = [
        missing_series(engine, GAUGES)
        for pod in pods
        for engine in pod.engines
        if engine.running is None and engine.waiting is None
    ]
    return tuple(dict.fromkeys(name for names in lacking for name in names))


def in_words(series: Sequence[str]) -> str:
    """Name some of these series, and count the rest."""
    shown = ", ".join(series[:MOST_NAMED_SERIES])
    more = len(series) - MOST_NAMED_SERIES
    return f"{shown} and {more} more" if more > 0 else shown


def _counts_no_request(engine: EngineSample) -> bool:
    """Whether it exports gauges alone, or answers whole requests and does not count their ends."""
    exported, profile = exported_fields(engine), _profile(engine)
    whole = profile is not None and not profile.has_tokens
    return exported <= {*GAUGES} or (whole and "finished_total" not in exported)


def _shows_no_token(engine: EngineSample) -> bool:
    profile = _profile(engine)
    if profile is None or not profile.has_tokens:
        return False
    gaps = (engine.inter_token_seconds, engine.time_per_output_token_seconds)
    counted = engine.output_tokens is not None and engine.output_tokens.sum > 0
    return not (engine.generation_tokens_total or counted or any(one and one.count for one in gaps))


def _has_histograms(engine: EngineSample) -> bool:
    return not exported_fields(engine).isdisjoint(_HISTOGRAMS)


def _are_read(pods: Sequence[PodSample], long_known: Collection[tuple[str, str]]) -> bool:
    """Return whether histograms of these pods were read, or should have been."""
    each = [(pod, engine) for pod in pods for engine in pod.engines]
    return any(
        # The age is that of one family, and that family may be the dropped one.
        engine.histograms_age_seconds is not None
        or _has_histograms(engine)
        or (pod.name, engine.engine) in long_known
        for pod, engine in each
    )


def _has_served(pod: PodSample, engine: EngineSample) -> bool:
    ready_for = pod.ready_for_seconds
    return is_busy(engine) and (ready_for is None or ready_for >= FIRST_REQUEST_SECONDS)


def _engines_if_served(pods: Sequence[PodSample]) -> list[EngineSample]:
    """Return all engines of these pods if one of them has served for a while; else none."""
    each = [(pod, engine) for pod in pods for engine in pod.engines]
    return [engine for _, engine in each] if any(_has_served(*one) for one in each) else []


def _profile(engine: EngineSample) -> RuntimeProfile | None:
    return next((one for one in catalogue.known() if one.name == engine.runtime), None)


def _series(metric: MetricNames, sumless: Collection[str] = ()) -> str:
    """Series to search for; for a histogram its buckets, which are dropped to save series.

    sumless: histograms that lack their sum alone.
    """
    if name := next((name for name in metric.names if name in sumless), ""):
        return f"{name}_sum"
    return metric.names[0] + ("_bucket" if metric.kind is MetricKind.HISTOGRAM else "")


def _names(profile: RuntimeProfile, field: str) -> tuple[str, ...]:
    return tuple(_series(metric) for metric in profile.metrics if metric.field == field)


def _missing_in_all(engines: Sequence[EngineSample], wanted: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the series of those fields that each of these engines lacks.

    One may lack a histogram's sum and another one its buckets: both are named.
    """
    lacking = {one for one in wanted if all(missing_series(each, {one}) for each in engines)}
    named = (name for engine in engines for name in missing_series(engine, lacking))
    return tuple(dict.fromkeys(named))


def _kind(pod: PodSample, engine: EngineSample) -> tuple[object, ...]:
    return engine.runtime, pod.template_hash, pod.image, generates_no_token(engine)
