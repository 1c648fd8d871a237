"""A reading that is older than it says orders nothing, over generated fleets and delays."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.engine_pages import NAMESPACE, vllm_page
from tests.unit.managed_store import ManagedStore, series_of

from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.adapters.prometheus.reading.reader import PrometheusReader

CONFIG = PrometheusConfig(url="http://store.test")
READINGS = 14
SCRAPE_SECONDS = 15.0


def _problems(phases, lag_seconds, at, *, rate=6.0, hung=(), tick_seconds=15.0):
    """The problem of each reading of pods scraped at their own moments; one reading is late."""
    now, problems = 1_700_000_000.0, []
    store = ManagedStore(lambda: now, [])
    reader = PrometheusReader(CONFIG, client=store, monotonic=lambda: now - 1.6e9)
    for reading in range(READINGS):
        now += tick_seconds
        lag = lag_seconds if reading == at else 0.0
        store.series = []
        for number, phase in enumerate(phases):
            last = (now - lag - phase) // SCRAPE_SECONDS * SCRAPE_SECONDS + phase
            # What was true then, called as old as it was at that moment.
            requests = rate * (1.6e9 if number in hung else last) - rate * 1.6e9 + 1000.0
            store.series += series_of(
                vllm_page(requests), last + lag, pod=f"chat-{number}", namespace=NAMESPACE,
                instance="10.0.0.1:8000",
            )  # fmt: skip
        problems.append(reader._read().problem)
    reader.close()
    return problems


_PHASES = st.lists(st.floats(0.0, 14.9), min_size=1, max_size=5)


@settings(max_examples=8, deadline=None)
@given(phases=_PHASES, lag=st.floats(2.0, 13.0), at=st.integers(8, READINGS - 2))
def test_a_reading_older_than_it_says_is_refused(phases, lag, at) -> None:
    """Once, where any pod shows that its last scrape was taken for a new one."""
    now = 1_700_000_000.0 + 15.0 * (at + 1)
    ages = [(now - phase) % SCRAPE_SECONDS for phase in phases]
    shows = any(age < lag - 0.01 for age in ages)
    problems = _problems(phases, lag, at)
    refused = [place for place, problem in enumerate(problems) if problem is not None]
    assert refused == ([at] if shows else [])
    if shows:
        assert problems[at].reason.value == "MetricsImplausible"
        assert "an old answer" in problems[at].detail


@settings(max_examples=8, deadline=None)
@given(
    phases=_PHASES, hung=st.frozensets(st.integers(0, 4)), tick=st.sampled_from([5.0, 15.0, 30.0])
)
def test_a_punctual_reading_is_never_refused(phases, hung, tick) -> None:
    """Whatever the pace of readings is, and also while engines hang."""
    assert _problems(phases, 0.0, -1, hung=hung, tick_seconds=tick) == [None] * READINGS
