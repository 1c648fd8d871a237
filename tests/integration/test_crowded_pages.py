"""A pod whose page has too many series, before a real Prometheus: it is left out, all else is read.

The reading runs in a process of its own, whose time and peak memory are measured.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.integration.prometheus_pods import CAPTURE, running
from tests.integration.prometheus_world import running_prometheus, serving_pages
from tests.integration.promql import series_of

from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.adapters.prometheus.reading.reader import PrometheusReader
from servingslo_lab.rig.prometheus import Prometheus

pytestmark = [pytest.mark.rig, pytest.mark.slow("servingslo.adapters.prometheus")]
# The chart's default memory limit for few pods.
LIMIT_MIB = 512
READINGS = 2
SCRAPED_SECONDS = 60.0


def _gauges(count: int) -> str:
    """Each an engine of its own."""
    return "".join(f'vllm:num_requests_running{{engine="{i}"}} 1\n' for i in range(count))


def _edges(count: int) -> str:
    """A histogram of one engine with so many edges, next to an honest gauge."""
    name = "vllm:time_to_first_token_seconds_bucket"
    return running(1) + "".join(f'{name}{{engine="0",le="{i}"}} 1\n' for i in range(count))


def _models(count: int) -> str:
    """A counter of so many models, and a forged count of the page's own samples."""
    forged = "scrape_samples_scraped -1e9\nscrape_samples_post_metric_relabeling -1e9\n"
    name = "vllm:generation_tokens_total"
    return forged + "".join(f'{name}{{engine="0",model_name="{i}"}} 1\n' for i in range(count))


def _long(count: int) -> str:
    """A gauge of few engines, each with a very long name."""
    name = "vllm:num_requests_running"
    return "".join(f'{name}{{engine="{i}{"},x" * 7_000}"}} 1\n' for i in range(count))


@contextmanager
def _crowded(page: str, count: int) -> Iterator[Prometheus]:
    """Prometheus has scraped the page, an honest pod next to it, and a namesake elsewhere."""
    with serving_pages() as pages:
        pages.add("honest", CAPTURE.read_text(encoding="utf-8"), namespace="team", pod="honest")
        pages.add("namesake", running(2), namespace="other", pod="crowd")
        pages.add("crowd", page, namespace="team", pod="crowd")
        with running_prometheus(pages, interval_seconds=5.0) as prometheus:
            deadline = time.monotonic() + SCRAPED_SECONDS
            query = (
                'count({pod="crowd", namespace="team", __name__=~"vllm:.*"}) >= '
                f'{count} and on() count({{pod="honest"}}) and on() count({{namespace="other"}})'
            )
            while not series_of(prometheus.url, query):
                assert time.monotonic() < deadline
                time.sleep(0.5)
            yield prometheus


def read_in_a_process(url: str) -> None:
    """Print what two readings found, the seconds of each, and this process' peak memory."""
    reader = PrometheusReader(PrometheusConfig(url=url))
    seconds = []
    for _ in range(READINGS):
        began = time.monotonic()
        found = asyncio.run(reader.read())
        seconds.append(round(time.monotonic() - began, 2))
    reader.close()
    # Of this program alone: the figure of getrusage is inherited from the process that began it.
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    peak = next(int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line) / 1024
    engines = {f"{n}/{p}": len(one.engines) for (n, p), one in found.pods.items()}
    told = {f"{n}/{p}": getattr(one, "left_out", "") for (n, p), one in found.pods.items()}
    problem = None if found.problem is None else str(found.problem.detail)
    print(json.dumps([seconds, round(peak), problem, engines, told]))  # noqa: T201


def _read(url: str) -> list:
    module = "tests.integration.test_crowded_pages"
    script = f"from {module} import read_in_a_process; read_in_a_process({url!r})"
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("page", "count"),
    [
        pytest.param(_gauges, 50_000, id="engines"),
        pytest.param(_gauges, 200_000, id="many-engines"),
        pytest.param(_edges, 50_000, id="edges"),
        pytest.param(_models, 50_000, id="models"),
        pytest.param(_long, 2_500, id="long-labels"),
    ],
)
def test_one_page_blinds_nobody_else(page: Callable[[int], str], count: int) -> None:
    """It is named with its series; its neighbour and its namesake are read, in time and memory."""
    with _crowded(page(count), count) as prometheus:
        seconds, peak, problem, engines, told = _read(prometheus.url)
    print(f"{page.__name__} {count}: {seconds} s, peak {peak} MiB")  # noqa: T201 - of a release
    assert problem is None
    assert engines == {"team/honest": 1, "other/crowd": 1, "team/crowd": 0}
    why = "labels of " if page is _long else f"{count} series "
    assert told["team/crowd"].startswith(f"pod crowd, not read: {why}")
    assert peak < LIMIT_MIB
