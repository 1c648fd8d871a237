"""Two servers of Prometheus answer in turn, each with its own scrapes: noticed, and said."""

from collections.abc import Iterator
from itertools import count
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.engine_pages import NAMESPACE, estimates, vllm_page
from tests.unit.managed_store import ManagedStore, series_of

from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.adapters.prometheus.reading.reader import PrometheusReader
from servingslo.adapters.prometheus.reading.server_clock import HELD_READINGS, OneServer
from servingslo.errors import ImplausibleMetricsError
from servingslo.estimation.windows.balance import in_turn, next_paces
from servingslo.estimation.windows.counters import Window

SCRAPE_SECONDS = 15.0


class _Balanced(ManagedStore):
    """Answers from the samples of one of its servers, chosen for each query."""

    servers: tuple[list, ...] = ()
    turns: Iterator[int]

    def query(self, promql, *, deadline, at_seconds=None):
        """The answer of the server whose turn it is."""
        self.series = self.servers[next(self.turns)]
        return super().query(promql, deadline=deadline, at_seconds=at_seconds)


def _problems(turns, lag, readings=12, pods=2):
    """The problem of each reading; the second server scraped each pod so much earlier."""
    now, problems = 1_700_000_000.0, []
    store = _Balanced(lambda: now, [])
    store.turns = turns
    reader = PrometheusReader(
        PrometheusConfig(url="http://store.test"), client=store, monotonic=lambda: now - 1.6e9
    )
    for _ in range(readings):
        now += SCRAPE_SECONDS
        store.servers = tuple(
            [
                one
                for number in range(pods)
                for one in series_of(
                    vllm_page(4.0 * (now - age - 1.69e9)), now - age, namespace=NAMESPACE,
                    pod=f"chat-{number}", instance=f"10.0.0.{number}:8000",
                )
            ]
            for age in (2.0, 2.0 + lag)
        )  # fmt: skip
        problems.append(reader._read().problem)
    reader.close()
    return problems


def _random(seed):
    random = Random(seed)  # noqa: S311
    while True:
        yield random.randrange(2)


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10_000), lag=st.floats(1.0, 14.0))
def test_two_servers_in_turn_are_noticed_and_said(seed, lag) -> None:
    """Within some readings; then nothing is decided on what they say, also between two signs."""
    problems = _problems(_random(seed), lag, readings=60)
    first = next(place for place, problem in enumerate(problems) if problem is not None)
    assert all(problems[first:])
    assert str(problems[-1].reason) == "MetricsImplausible"
    assert "two servers of Prometheus answer in turn" in problems[-1].detail


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("pods", [1, 5])
def test_two_servers_that_take_turns_strictly_are_noticed(first, pods) -> None:
    """Whichever of them tells the ages."""
    turns = (number % 2 for number in count(first))
    problems = _problems(turns, 8.0, pods=pods)
    assert problems[-1] is not None


def test_one_server_or_one_for_each_reading_is_read() -> None:
    """The samples of each are then as old as it says."""
    one = iter(lambda: 0, 1)
    assert _problems(one, 8.0) == [None] * 12


@settings(max_examples=8, deadline=None)
@given(behind=st.floats(4.0, 12.0), rate=st.floats(0.5, 30.0), first=st.integers(0, 1))
def test_counts_that_are_behind_at_every_other_reading_are_said(behind, rate, first) -> None:
    """Where the ages do not tell it: much and little in turn, at all engines."""

    def targets(seconds):
        late = behind * ((round(seconds / SCRAPE_SECONDS) + first) % 2)
        for number in range(2):
            yield {"pod": f"chat-{number}"}, vllm_page(rate * (seconds - late))

    *_, last = estimates(targets, 12, ["chat-0", "chat-1"])
    told = {pod: why for pod, why in last.lost_families if "two servers" in why}
    assert list(told) == ["chat-0", "chat-1"]


@pytest.mark.parametrize("spread", [0.02, 0.2, 0.5, 1.0, 2.0])
def test_bursts_are_not_taken_for_two_servers(spread) -> None:
    """However they are spread, in all but a few of a thousand ticks."""
    random = Random(3)  # noqa: S311
    paces: tuple[float, ...] = ()
    found = 0
    for _ in range(5000):
        window = Window(
            pod="a", engine="0", seconds=15.0,
            generated_tokens=1e4 * random.gammavariate(spread**-2, spread**2),
        )  # fmt: skip
        paces = next_paces(paces, [window], 1)
        found += in_turn(paces)
    assert found <= 5


def test_engines_with_windows_at_different_ticks_are_not_compared() -> None:
    """Scrapes of half a minute bring one engine at a tick and another at the next."""
    paces: tuple[float, ...] = ()
    for tick in range(20):
        tokens = 1e3 if tick % 2 else 9e3
        paces = next_paces(
            paces,
            [Window(pod="ab"[tick % 2], engine="0", seconds=30.0, generated_tokens=tokens)],
            2,
        )
        assert not in_turn(paces)


def test_few_samples_that_get_older_are_no_second_server() -> None:
    """A store that is written to meanwhile may show one sample and then not, now and then."""
    check = OneServer().check
    for reading in range(100):
        check({"a": -15.0, "b": 0.0, "c": 0.0})
        if reading % HELD_READINGS == 0:
            check({"a": -15.0})
        check({"a": 15.0})


def test_samples_that_get_older_twice_tell_for_a_while() -> None:
    """Until no sign of a second server has come for some minutes."""
    check = OneServer().check
    check({"a": -8.0, "b": -7.0, "c": 0.0})
    for newer in (-8.0, *[0.0] * (HELD_READINGS - 1)):
        with pytest.raises(ImplausibleMetricsError, match="answer in turn"):
            check({"a": newer, "b": newer})
    check({"a": 0.0, "b": 0.0})
