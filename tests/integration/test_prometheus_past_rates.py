"""Two weeks of the past in a real Prometheus: read once, joined by name, and their season found.

The samples carry timestamps of their own; Prometheus takes them because it is told to accept
samples that are so old. Of the first week's pods nothing is left but their series.
"""

import json
import math
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import quote

import pytest
from tests.integration.prometheus_world import proxying, running_prometheus, serving_pages

from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.adapters.prometheus.past.rates import BIN_SECONDS, RECENT_BIN_SECONDS, PastRates
from servingslo.estimation.forecast.season_profile import RateHistory, find_season
from servingslo.models.fleet.latency import Objective
from servingslo.models.objectives import LatencyMetric
from servingslo.policy.inputs import ForecastTargets, ScaleTarget, SeasonStated, Targets
from servingslo.reasons import Reason

pytestmark = pytest.mark.slow("servingslo.adapters.prometheus.past")

DAY = 86400
DAYS = 14
SAMPLE_SECONDS = 60
SATURDAY, SUNDAY = 2, 3
PATIENCE_SECONDS = 60.0
# Of `remembering`: a week of five series, and six hours of three.
SAMPLES = (5 * DAYS * DAY // 2 + 3 * 6 * 3600) // SAMPLE_SECONDS
NAMESPACE = "inference"
OLD_POD, NEW_POD = "llama-6d4cf56db6-x2k9z", "llama-7f5b8c9d4-bcdfg"
LLAMA = ScaleTarget(api_version="apps/v1", kind="Deployment", name="llama")


def office_rate(seconds: float) -> float:
    """Requests per second: ten in office hours of working days, one at any other time."""
    day, of_day = divmod(seconds, DAY)
    return 10.0 if 9.0 <= of_day / 3600.0 < 17.0 and day % 7 not in {SATURDAY, SUNDAY} else 1.0


def counted(
    start: float, end: float, rate: Callable[[float], float], split: tuple[str, ...] = ("stop",)
) -> str:
    """A page with one counter's samples from start to end, each with its time."""
    lines, total = [], 0.0
    for at in range(int(start), int(end), SAMPLE_SECONDS):
        total += rate(at - SAMPLE_SECONDS / 2) * SAMPLE_SECONDS
        lines += [
            f'vllm:request_success_total{{engine="0",finished_reason="{reason}",model_name="m"}} '
            f"{total / len(split)} {at * 1000}"
            for reason in split
        ]
    return "\n".join(lines) + "\n"


@contextmanager
def remembering(now: float) -> Iterator[str]:
    """A Prometheus that remembers two weeks of `llama` and others beside it."""
    start, middle = now - DAYS * DAY, now - DAYS * DAY / 2
    recent = now - 6 * 3600
    with serving_pages() as pages:
        for pod, text, labels in (
            (OLD_POD, counted(start, middle, office_rate), {}),
            (NEW_POD, counted(middle, now, office_rate, ("stop", "length")), {}),
            # Another scrape of the same pod, which counts the same requests.
            (NEW_POD, counted(middle, now, office_rate, ("stop", "length")), {"mirror": "b"}),
            ("llama-chat-5c9f8d7b6-qwrtz", counted(recent, now, lambda _: 3.0), {}),
            ("chat-0", counted(recent, now, lambda _: 2.0), {}),
            ("chat-11", counted(recent, now, lambda _: 2.0), {}),
        ):
            path = "-".join((pod, *labels.values()))
            pages.add(path, text, namespace=NAMESPACE, pod=pod, **labels)
        with running_prometheus(
            pages, interval_seconds=4.0, oldest_sample_days=DAYS + 1
        ) as prometheus:
            yield prometheus.url


def asking(target: ScaleTarget, season: SeasonStated = SeasonStated.AUTO) -> Targets:
    """Targets of this workload, with a season that is stated or not."""
    objective = Objective(metric=LatencyMetric.TTFT, percentile=99.0, threshold_seconds=1.0)
    return Targets(target=target, objectives=(objective,), forecast=ForecastTargets(season=season))


@contextmanager
def past_rates_of(url: str) -> Iterator[PastRates]:
    """A reader of the past, closed at the end."""
    source = PastRates(PrometheusConfig(url=url))
    try:
        yield source
    finally:
        source.close()


def taken(url: str, uid: str, target: ScaleTarget, pods: list[str]) -> RateHistory | None:
    """What one reading holds of a target; None where nothing was read in time."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    with past_rates_of(url) as source:
        while time.monotonic() < deadline:
            source.tick()
            history = source.take(uid, NAMESPACE, asking(target), pods)
            if history is not None:
                return history
            time.sleep(0.05)
    return None


def wait_until_scraped(url: str, samples: int) -> None:
    """Wait until Prometheus holds so many samples of the counter; a scrape may bring a part."""
    query = quote(f"sum(count_over_time(vllm:request_success_total[{DAYS + 1}d]))")
    deadline = time.monotonic() + PATIENCE_SECONDS
    found = 0
    while time.monotonic() < deadline:
        with urllib.request.urlopen(f"{url}/api/v1/query?query={query}", timeout=10) as answer:  # noqa: S310 - our own
            result = json.load(answer)["data"]["result"]
        found = int(result[0]["value"][1]) if result else 0
        if found >= samples:
            return
        time.sleep(0.2)
    raise AssertionError(f"{found} of {samples} samples were scraped")


@pytest.fixture(scope="module")
def prometheus() -> Iterator[tuple[str, float]]:
    """The address of a Prometheus with a past, and when that ends."""
    now = time.time() // SAMPLE_SECONDS * SAMPLE_SECONDS  # noqa: TID251 - timestamps of samples
    with remembering(now) as url:
        wait_until_scraped(url, SAMPLES)
        yield url, now


def test_two_weeks_of_pods_that_are_gone_give_the_season(prometheus):
    """Both weeks are of the Deployment, counted once; working days and rest days are told apart."""
    url, now = prometheus
    history = taken(url, "uid", LLAMA, [NEW_POD])
    assert history is not None
    assert history.start_seconds <= now - (DAYS - 0.1) * DAY
    assert history.bin_seconds == BIN_SECONDS
    known = [
        (history.start_seconds + place * BIN_SECONDS, rate)
        for place, rate in enumerate(history.rates_per_second)
        if rate is not None
    ]
    assert len(known) > 0.99 * len(history.rates_per_second)
    within = [
        rate == pytest.approx(office_rate(at + BIN_SECONDS / 2), rel=0.02) for at, rate in known
    ]
    # A bin in which the rate changes holds a part of either.
    assert sum(within) > 0.98 * len(within)
    recent = history.recent
    assert recent is not None
    assert recent.bin_seconds == RECENT_BIN_SECONDS
    assert recent.start_seconds >= now - DAY - RECENT_BIN_SECONDS
    minutes = [
        rate == pytest.approx(office_rate(recent.start_seconds + (place + 0.5) * 60), rel=0.02)
        for place, rate in enumerate(recent.rates_per_second)
        if rate is not None
    ]
    assert len(minutes) > 0.99 * DAY / RECENT_BIN_SECONDS
    assert sum(minutes) > 0.98 * len(minutes)
    finding = find_season(history)
    assert finding.reason is Reason.SEASON_FOUND
    assert finding.season is not None
    assert finding.season.rest_days == (SATURDAY, SUNDAY)
    wednesday = math.floor(now / DAY / 7) * 7 * DAY + 6 * DAY
    assert finding.season.rate_per_second(wednesday + 12 * 3600) == pytest.approx(10.0, rel=0.05)
    assert finding.season.rate_per_second(wednesday + 3 * 3600) == pytest.approx(1.0, rel=0.05)


def test_the_past_before_a_moment_is_read_at_once(prometheus):
    """As the operator would have read it then; a pod of another name tells nothing."""
    url, now = prometheus
    until = now - 2 * DAY
    with past_rates_of(url) as source:
        history = source.read_past(NAMESPACE, LLAMA, [NEW_POD], until)
        refused = source.read_past(NAMESPACE, LLAMA, ["other-0"], until)

    end = history.start_seconds + len(history.rates_per_second) * BIN_SECONDS
    assert until - BIN_SECONDS < end <= until
    last = history.rates_per_second[-1]
    assert last == pytest.approx(office_rate(end - BIN_SECONDS / 2), rel=0.2)
    assert refused.rates_per_second == ()
    assert "other-0" in refused.detail


def test_who_asks_anew_at_every_tick_keeps_no_other_waiting(prometheus):
    """Of resources whose targets change all the time two are told in a tick, newcomers as ever."""
    url, _ = prometheus
    restless = [f"restless-{i}" for i in range(10)]
    seasons = (SeasonStated.AUTO, SeasonStated.DAY)

    def told(source: PastRates, uids: list[str], season: SeasonStated) -> int:
        asked = asking(LLAMA, season)
        return sum(source.take(uid, NAMESPACE, asked, [NEW_POD]) is not None for uid in uids)

    with past_rates_of(url) as source:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not told(source, restless, seasons[0]) and time.monotonic() < deadline:
            time.sleep(0.05)
            source.tick()
        source.tick()
        again = told(source, restless, seasons[1])
        newcomer = told(source, ["newcomer"], seasons[0])
        source.tick()
        later = told(source, restless, seasons[1])
    assert (again, newcomer, later) == (2, 1, 2)


@pytest.mark.parametrize(
    ("target", "pods", "rate"),
    [
        pytest.param(
            ScaleTarget(api_version="apps/v1", kind="Deployment", name="llama-chat"),
            ["llama-chat-5c9f8d7b6-qwrtz"],
            3.0,
            id="name-that-begins-alike",
        ),
        pytest.param(
            ScaleTarget(api_version="apps/v1", kind="StatefulSet", name="chat"),
            ["chat-0", "chat-11"],
            4.0,
            id="stateful-set",
        ),
    ],
)
def test_workloads_are_told_apart_by_their_pods_names(prometheus, target, pods, rate):
    """Neither a longer name nor a number is taken for another workload's."""
    url, _ = prometheus
    history = taken(url, "uid", target, pods)
    assert history is not None
    rates = [rate for rate in history.rates_per_second if rate is not None]
    assert sum(rates) / len(rates) == pytest.approx(rate, rel=0.05)


def test_what_names_do_not_tell_is_refused_with_a_reason(prometheus):
    """A pod with another's name, a kind that numbers twice: no rates, and the history says why."""
    url, _ = prometheus
    foreign = taken(url, "a", LLAMA, [NEW_POD, "llama-by-hand"])
    group = ScaleTarget(
        api_version="leaderworkerset.x-k8s.io/v1", kind="LeaderWorkerSet", name="llama"
    )
    for history, word in (
        (foreign, "llama-by-hand"),
        (taken(url, "b", group, ["llama-0-1"]), "LeaderWorkerSet"),
    ):
        assert history is not None
        assert history.rates_per_second == ()
        assert word in history.detail
        assert find_season(history).reason is Reason.HISTORY_TOO_SHORT


def test_each_resource_is_given_a_reading_once_and_a_tick_gives_a_few(prometheus):
    """The season is found once a day, and a thousand resources are not served in one tick."""
    url, _ = prometheus
    with past_rates_of(url) as source:
        deadline = time.monotonic() + PATIENCE_SECONDS
        given: list[str] = []
        ticks = 0
        while len(given) < 25 and time.monotonic() < deadline:
            source.tick()
            now = [
                uid
                for uid in map(str, range(25))
                if source.take(uid, NAMESPACE, asking(LLAMA), [NEW_POD]) is not None
            ]
            assert len(now) <= 10
            ticks += bool(now)
            given += now
            time.sleep(0.02)
        assert sorted(given) == sorted(set(given))
        assert len(given) == 25
        assert ticks == 3


def test_a_forecast_or_target_that_changed_is_given_the_reading_at_once(prometheus):
    """A season that is stated now is looked for in the next tick, not in tomorrow's reading."""
    url, _ = prometheus
    stated = asking(LLAMA, SeasonStated.DAY)
    other = asking(ScaleTarget(api_version="apps/v1", kind="StatefulSet", name="chat"))
    with past_rates_of(url) as source:
        deadline = time.monotonic() + PATIENCE_SECONDS
        first = None
        while first is None and time.monotonic() < deadline:
            source.tick()
            first = source.take("a", NAMESPACE, asking(LLAMA), [NEW_POD])
            time.sleep(0.02)
        source.tick()
        assert source.take("a", NAMESPACE, asking(LLAMA), [NEW_POD]) is None
        assert source.take("a", NAMESPACE, stated, [NEW_POD]) == first
        assert source.take("a", NAMESPACE, stated, [NEW_POD]) is None
        changed = source.take("a", NAMESPACE, other, ["chat-0"])
    assert first is not None
    assert changed is not None
    assert changed.rates_per_second != first.rates_per_second


def test_a_partial_answer_is_no_history(prometheus, caplog):
    """A warning beside the answer: nothing is handed out, and the log says that it comes again."""
    url, _ = prometheus
    with proxying(url) as proxy:
        proxy.warnings.append("a store is away")
        with past_rates_of(proxy.url) as source:
            deadline = time.monotonic() + PATIENCE_SECONDS
            while "history not read" not in caplog.text and time.monotonic() < deadline:
                source.tick()
                assert source.take("a", NAMESPACE, asking(LLAMA), [NEW_POD]) is None
                time.sleep(0.05)
    assert "a store is away" in caplog.text
    assert "retry_in=600s" in caplog.text
