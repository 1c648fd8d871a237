"""A Prometheus of its own kind: what it scraped from simulated engines, and how it may lie.

It answers the operator's reader query by query, as text of numbers, from pages that it keeps with
the time of their scrape. It knows which query asks for what by the reader's own texts, and nothing
of what the reader does with the answers.
"""

import math
import random
from dataclasses import dataclass, field

from servingslo.adapters.prometheus.client import Answer
from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.adapters.prometheus.queries import GROUP_LABEL, NOW, build_queries
from servingslo.errors import MetricsUnavailableError
from servingslo.runtimes.catalogue import CATALOGUE
from servingslo_lab.sim.replicas import layout

SCRAPE_SECONDS = 15.0
LOOKBACK_SECONDS = 300.0  # Prometheus's own default, --query.lookback-delta
CONFIG = PrometheusConfig(url="http://prometheus.test:9090")
NAMESPACE = "inference"
MODEL = "llama"
GAUGES = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:cache_config_info",
)
COUNTERS = {
    "vllm:prompt_tokens_total": layout.PROMPT_TOKENS,
    "vllm:prompt_tokens_cached_total": layout.CACHED_TOKENS,
    "vllm:generation_tokens_total": layout.GENERATED_TOKENS,
    "vllm:request_success_total": layout.SUCCESSES,
    "vllm:num_preemptions_total": layout.PREEMPTIONS,
}
HISTOGRAMS = {
    "vllm:time_to_first_token_seconds": layout.TTFT,
    "vllm:inter_token_latency_seconds": layout.ITL,
    "vllm:request_time_per_output_token_seconds": layout.TPOT,
    "vllm:e2e_request_latency_seconds": layout.E2E,
    "vllm:request_queue_time_seconds": layout.QUEUE,
    "vllm:request_prompt_tokens": layout.PROMPT_LENGTH,
    "vllm:request_generation_tokens": layout.OUTPUT_LENGTH,
    "vllm:iteration_tokens_total": layout.ITERATION,
}
# By which group of samples an age is told.
_AGE_OF = {
    "gauge": "vllm:num_requests_running",
    "counter": "vllm:generation_tokens_total",
    "histogram": "vllm:time_to_first_token_seconds_count",
}

# Of a page: the series' name and further labels, and its value.
Line = tuple[str, tuple[tuple[str, str], ...], float]


@dataclass
class Page:
    """One scrape of one pod, as it came. gross: nobody may take its numbers for true.

    at: by the clock of Prometheus. truly_at: by the true one.
    """

    at: float
    truly_at: float
    lines: list[Line]
    gross: bool = False


def page_of(engine: object) -> list[Line]:
    """What an engine exports, in the order of its page."""
    model = (("engine", "0"), ("model_name", MODEL))
    limits = engine.limits
    capacity = (
        ("engine", "0"),
        ("block_size", "16"),
        ("kv_cache_size_tokens", str(int(limits.kv_capacity_tokens))),
    )
    lines: list[Line] = [
        (GAUGES[0], model, float(engine.running)),
        (GAUGES[1], model, float(engine.waiting)),
        (GAUGES[2], model, float(engine.kv_usage_ratio)),
        (GAUGES[3], capacity, 1.0),
    ]
    for name, place in COUNTERS.items():
        labels = (*model, ("finished_reason", "stop")) if "success" in name else model
        lines.append((name, labels, float(engine.counter(place))))
    for name, number in HISTOGRAMS.items():
        found = engine.histogram(number)
        edges = (*map(repr, found.upper_bounds), "+Inf")
        lines += [
            (f"{name}_bucket", (*model, ("le", edge)), float(count))
            for edge, count in zip(edges, found.cumulative_counts, strict=True)
        ]
        lines.append((f"{name}_sum", model, found.sum))
        lines.append((f"{name}_count", model, float(found.count)))
    return lines


def is_gauge(name: str) -> bool:
    """Whether it may fall."""
    return name in GAUGES


@dataclass
class Distortion:
    """What a pod's page is turned into at each scrape. kind: see `distorted`."""

    kind: str
    share: float
    pods: frozenset[str]
    seed: int
    bases: dict = field(default_factory=dict)


# Nobody takes these for true: no count of replicas may be lowered by what they say.
GROSS = frozenset({"garbage", "negative", "nan", "counters-missing", "gauges-missing"})


def distorted(page: list[Line], how: Distortion, pod: str, at: float) -> list[Line] | None:
    """The page as it is told under this distortion; None where nothing comes."""
    rng = random.Random(f"{how.seed}/{pod}/{at}")
    fixed = random.Random(how.seed)
    factor = 10.0 ** fixed.choice((3, 6, 12))
    match how.kind:
        case "no-page":
            return None
        case "truncated":
            return page[: fixed.randrange(max(len(page), 1))]
        case "garbage":
            return [(n, labels, v * factor * rng.uniform(0.5, 2.0)) for n, labels, v in page]
        case "negative":
            return [(n, labels, -v - 1.0) for n, labels, v in page]
        case "nan":
            return [(n, labels, math.nan) for n, labels, v in page]
        case "some-nan":
            return [(n, x, math.nan if fixed.random() < 0.2 else v) for n, x, v in page]
        case "counters-missing":
            return [line for line in page if is_gauge(line[0])]
        case "gauges-missing":
            return [line for line in page if not is_gauge(line[0])]
        case "some-missing":
            return [line for line in page if fixed.random() > 0.2]
        case "reset":
            base = how.bases.setdefault(pod, {line[:2]: line[2] for line in page})
            return [
                (n, x, v if is_gauge(n) else max(v - base.get((n, x), 0.0), 0.0))
                for n, x, v in page
            ]
        case "kept-page":
            return how.bases.setdefault(pod, page)
        case "idle-gauges":
            zero = ("vllm:num_requests_running", "vllm:num_requests_waiting")
            return [(n, x, 0.0 if n in zero else v) for n, x, v in page]
        case "percent":
            return [(n, x, v * 100.0 if n == GAUGES[2] else v) for n, x, v in page]
        case "doubled-parts":
            more = [(n, (*x[:1], ("model_name", "alias"), *x[2:]), v) for n, x, v in page
                    if not is_gauge(n)]  # fmt: skip
            return page + more
    raise ValueError(how.kind)


class FakePrometheus:
    """Scrapes, and the reader's client. Times are of the true clock.

    monotonic: the time of now; spend: lets time pass, in seconds.
    down, empty, clock_ahead, slow_seconds, freeze: faults in force. halves: answers alternate
    between two servers, the second of which is so many seconds behind. told_at: the time that the
    last reading was told, by which its samples are asked for.
    """

    def __init__(self, monotonic, spend) -> None:
        self.monotonic, self.spend = monotonic, spend
        self.pages: dict[str, list[Page]] = {}
        self.distortions: list[Distortion] = []
        self.down = self.empty = self.scrapes_stop = self.partial = self.repeated = False
        self.shuffled = False
        self.clock_ahead = self.slow_seconds = self.behind_seconds = 0.0
        self.second_source = False
        self.readings = 0
        self._queries = build_queries(CATALOGUE, CONFIG)
        self._rng = random.Random(0)
        self._turn = 0
        self.told_at = 0.0

    def scrape(self, at: float, engines) -> None:
        """Every pod that serves is scraped; one that is gone leaves a marker that ends it."""
        if self.scrapes_stop:
            return
        for gone in [pod for pod in self.pods_known() if pod not in engines]:
            del self.pages[gone]
        for pod, engine in engines.items():
            lines: list[Line] | None = page_of(engine)
            gross = False
            for how in self.distortions:
                if pod in how.pods and lines is not None:
                    lines = distorted(lines, how, pod, at)
                    gross = gross or how.kind in GROSS
            kept = self.pages.setdefault(pod, [])
            if kept and kept[-1].at >= at + self.clock_ahead:
                continue  # refused by Prometheus as out of order
            kept.append(Page(at + self.clock_ahead, at, lines or [], gross))
            del kept[:-24]

    def pods_known(self) -> list[str]:
        """Pods with pages."""
        return list(self.pages)

    def newest(self, pod: str, at: float) -> Page | None:
        """The page that a query at this time is answered from."""
        for page in reversed(self.pages.get(pod, ())):
            if page.at <= at:
                return page if at - page.at <= LOOKBACK_SECONDS and page.lines else None
        return None

    def query(self, promql: str, *, deadline: float, at_seconds: float | None = None) -> Answer:
        """The answer of one query, or none in time."""
        if self.slow_seconds:
            left = deadline - self.monotonic()
            late = min(self.slow_seconds * self._rng.uniform(0.5, 1.5), CONFIG.timeout_seconds)
            self.spend(max(min(late, left), 0.0))
            if late >= min(CONFIG.timeout_seconds, left):
                raise MetricsUnavailableError("no answer in time")
        if self.down:
            raise MetricsUnavailableError("connection refused")
        if promql == NOW:
            self._turn += 1
            behind = self.behind_seconds if self._turn % 2 else 0.0
            told = self.told_at = self.monotonic() + self.clock_ahead - behind
            return Answer(result=[told, f"{told:.3f}"])
        if self.empty:
            return Answer(result=[])
        if promql in self._queries.newest:
            return Answer(result=self._newest_stamps(at_seconds or 0.0))
        result = self._series(promql, at_seconds or 0.0)
        if self.repeated:
            result += result
        if self.shuffled:
            self._rng.shuffle(result)
        if self.partial:
            result = result[: len(result) // 2]
            return Answer(result=result, warnings=("a store did not answer",))
        return Answer(result=result)

    def _newest_stamps(self, told_at: float) -> list:
        found = [(pod, self.newest(pod, told_at)) for pod in self.pods_known()]
        return [
            {"metric": {"namespace": NAMESPACE, "pod": pod}, "value": [told_at, f"{page.at}"]}
            for pod, page in found
            if page is not None
        ]

    def _series(self, promql: str, told_at: float) -> list:
        wanted = self._wanted(promql)
        found = []
        for pod in self.pods_known():
            page = self.newest(pod, told_at)
            if page is None:
                continue
            sources = [("a", page)]
            if self.second_source:
                older = self.newest(pod, page.at - 0.1)
                sources += [("b", older)] if older is not None else []
            for replica, its in sources:
                found += self._of_page(wanted, pod, replica, its, told_at)
        return found

    def _of_page(self, wanted, pod: str, replica: str, page: Page, told_at: float) -> list:
        common = {"namespace": NAMESPACE, "pod": pod, "job": "engines", "instance": pod,
                  "prometheus_replica": replica}  # fmt: skip
        if wanted == "ages":
            names = {name for name, _, _ in page.lines}
            age = told_at - page.at
            return [
                {
                    "metric": {**common, "engine": "0", GROUP_LABEL: f"{group}/engine"},
                    "value": [told_at, f"{age}"],
                }
                for group, name in _AGE_OF.items()
                if name in names
            ]
        merged: dict = {}
        for name, labels, value in page.lines:
            if name in wanted:
                key = name, labels
                merged[key] = max(merged.get(key, -math.inf), value) if key in merged else value
        return [
            {
                "metric": {"__name__": name, **common, **dict(labels)},
                "value": [told_at, "NaN" if math.isnan(value) else repr(value)],
            }
            for (name, labels), value in merged.items()
        ]

    def _wanted(self, promql: str) -> object:
        """Names of the series that a query asks for."""
        if promql in self._queries.ages:
            return "ages"
        if promql in self._queries.gauges:
            return frozenset(GAUGES)
        if promql in self._queries.counters:
            return frozenset(COUNTERS)
        for name in HISTOGRAMS:
            if f"{name}_bucket" in promql:
                return frozenset({f"{name}_bucket", f"{name}_sum", f"{name}_count"})
        return frozenset()

    def close(self) -> None:
        """Nothing is held."""
