"""What one operator does with many workloads, beside a real API server and a real Prometheus.

    python -m tests.benchmarks.scale --resources 100 500 1000 2000 [--minutes 5] [--tick-seconds 15]

A row for each number of resources, with four pods each, and the growth from the first to the last.
At constant demand, which each workload's count just serves. Everything runs on this machine, the
control plane, Prometheus and the simulated engines too; how busy it is stands in each row.
"""

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TypeVar

from tests.integration.many_workloads import ManyWorkloads, Watched, orders
from tests.integration.operator_under_test import Engines, Operator, install_chart, process_use

from servingslo_lab.rig.cluster import Rig, RigOptions
from servingslo_lab.rig.waiting import http_get, wait_until

_DECIDED = re.compile(r" decided namespace=(\S+) name=(\S+) ")
FIRST_WITHIN_SECONDS = 240.0
RESTARTED_TICKS = 4
_PODS_EACH = 4
# How long Prometheus and the API server are watched before the operator starts.
_ALONE_TICKS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One row of the table.

    load_average: of the machine, at the end; what others run on it is in there. cores_used: by the
    operator; tick_cpu_median_seconds, tick_cpu_p99_seconds: of that from one tick to the next, with
    the statuses that are written between. status_writes_a_minute, queries_a_minute: to the API
    server, and to Prometheus. orders_learning: until most laws were
    trusted, orders: afterwards, orders_restarted: after a restart.
    """

    resources: int
    pods: int
    tick_median_seconds: float
    tick_worst_seconds: float
    ticks: int
    first_decisions_seconds: float
    first_decisions_restarted_seconds: float
    peak_mebibytes: float
    growth_mebibytes: float
    trusted: int
    worst_rate_error: float
    probe_worst_seconds: float
    probe_p99_seconds: float
    orders_learning: int
    orders: int
    orders_restarted: int
    cores_used: float
    tick_cpu_median_seconds: float
    tick_cpu_p99_seconds: float
    status_writes_a_minute: float
    queries_a_minute: float
    prometheus_cores: tuple[float, float]
    api_server_cores: tuple[float, float]
    load_average: float


Row = TypeVar("Row")
# What of many workloads, Prometheus's and the API server's cores without an operator, options, and
# settings of an operator makes a row.
Watch = Callable[[ManyWorkloads, tuple[float, float], argparse.Namespace, Sequence[str]], Row]


def measure(options: argparse.Namespace, resources: int, watch: Watch[Row]) -> Row:
    """Start everything, watch the operator, and stop everything."""
    tick = options.tick_seconds
    with (
        Rig.start(RigOptions(scrape_interval_seconds=tick, hpa_sync_period_seconds=15.0)) as rig,
        tempfile.TemporaryDirectory() as folder,
    ):
        install_chart(rig)
        engines = Engines(rig)
        rig.configure_prometheus(http_sd_url=f"{engines.url}/sd")
        many = ManyWorkloads(
            rig=rig,
            engines=engines,
            resources=resources,
            pods=_PODS_EACH * resources,
            folder=Path(folder),
            traffic_seconds=60.0 * options.minutes + 600.0,
            # Windows of behavior as by default.
            changes={"behavior": {}},
        )
        say("creating workloads")
        many.create(ready_within_seconds=600.0)
        time.sleep(2 * tick)  # until all are scraped
        began, before = time.monotonic(), cpu_seconds(rig)
        time.sleep(_ALONE_TICKS * tick)
        alone = cores(rig, before, time.monotonic() - began)
        settings = f"--tick-seconds={tick:g}", "--prometheus-timeout-seconds=10"
        return watch(many, alone, options, settings)


def _watch(
    many: ManyWorkloads,
    alone: tuple[float, float],
    options: argparse.Namespace,
    settings: Sequence[str],
) -> Figures:
    """Of one operator, which is restarted at the end."""
    operator = Operator(many.rig, *settings, program=options.program)
    first = _start(operator, many)
    say(f"all decided after {first:.1f} s")
    assert operator.process is not None
    began, before = time.monotonic(), process_use(operator.process.pid)
    counted = _status_writes(many.rig), _queries(many.rig)
    others = cpu_seconds(many.rig)
    learning: list[str] = []
    with Watched(operator, page_seconds=0.5 * options.tick_seconds) as watched:
        while time.monotonic() < began + 60.0 * options.minutes:
            time.sleep(options.tick_seconds)
            seen = many.seen(operator)
            if not learning and seen.trusted >= 0.95 * many.resources:
                learning = [*orders(operator), ""]
            say(
                f"{time.monotonic() - began:.0f} s: {seen.trusted} trusted, "
                f"{len(orders(operator))} orders, rates within {seen.worst_rate_error:.0%}, "
                f"{watched.resident_mebibytes:.0f} MiB; {operator.readiness().strip()}"
            )
        peak, resident = watched.peak_mebibytes, watched.resident_mebibytes
    seen, ordered = many.seen(operator), orders(operator)
    used = process_use(operator.process.pid)[0] - before[0]
    seconds = time.monotonic() - began
    with_it = cores(many.rig, others, seconds)
    writes, queries = _status_writes(many.rig) - counted[0], _queries(many.rig) - counted[1]
    operator.stop()
    again = _start(operator, many)
    time.sleep(RESTARTED_TICKS * options.tick_seconds)
    probes, cpu = sorted(watched.probe_seconds), sorted(watched.cpu_seconds) or [0.0]
    figures = Figures(
        resources=many.resources,
        pods=many.pods,
        tick_median_seconds=median(watched.tick_seconds),
        tick_worst_seconds=max(watched.tick_seconds),
        ticks=len(watched.tick_seconds),
        first_decisions_seconds=first,
        first_decisions_restarted_seconds=again,
        peak_mebibytes=peak,
        growth_mebibytes=resident - before[1],
        trusted=seen.trusted,
        worst_rate_error=seen.worst_rate_error,
        probe_worst_seconds=probes[-1],
        probe_p99_seconds=probes[int(0.99 * len(probes))],
        orders_learning=max(len(learning) - 1, 0) if learning else len(ordered),
        orders=len(ordered) - len(learning) + 1 if learning else 0,
        orders_restarted=len(orders(operator)) - len(ordered),
        cores_used=used / seconds,
        tick_cpu_median_seconds=median(cpu),
        tick_cpu_p99_seconds=cpu[int(0.99 * len(cpu))],
        status_writes_a_minute=60.0 * writes / seconds,
        queries_a_minute=60.0 * queries / seconds,
        prometheus_cores=(alone[0], with_it[0]),
        api_server_cores=(alone[1], with_it[1]),
        load_average=os.getloadavg()[1],
    )
    operator.stop()
    return figures


def _start(operator: Operator, many: ManyWorkloads) -> float:
    """Seconds from the start of the process until the last resource has its first decision."""
    log = many.rig.work_dir / "logs" / "operator.log"
    skipped = log.stat().st_size if log.exists() else 0
    began = time.monotonic()
    operator.start(timeout_seconds=FIRST_WITHIN_SECONDS)

    def all_decided() -> bool:
        text = log.read_bytes()[skipped:].decode(errors="replace")
        return len(set(_DECIDED.findall(text))) >= many.resources

    wait_until(all_decided, what="the first decision of all", timeout_seconds=FIRST_WITHIN_SECONDS)
    return time.monotonic() - began


def _status_writes(rig: Rig) -> float:
    """Patches of ServingSLOs that the API server has taken."""
    page = _api_server_page(rig)
    return _sum_of(page, "apiserver_request_total", 'resource="servingslos"', 'verb="PATCH"')


def _queries(rig: Rig) -> float:
    """Instant and range queries that Prometheus has answered."""
    page = http_get(f"{rig.prometheus_url}/metrics") or ""
    return _sum_of(page, "prometheus_http_requests_total", 'handler="/api/v1/query')


def _api_server_page(rig: Rig) -> str:
    client = rig.api_client()
    method, url, headers, *_ = client.param_serialize(
        "GET", "/metrics", auth_settings=["BearerToken"]
    )
    return str(client.call_api(method, url, headers).read().decode())


def cpu_seconds(rig: Rig) -> tuple[float, float]:
    """Used by Prometheus and by the API server since their start."""
    pages = (http_get(f"{rig.prometheus_url}/metrics") or "", _api_server_page(rig))
    prometheus, api_server = (_sum_of(page, "process_cpu_seconds_total") for page in pages)
    return prometheus, api_server


def cores(rig: Rig, before: tuple[float, float], seconds: float) -> tuple[float, float]:
    """What both used since then, per second."""
    now = cpu_seconds(rig)
    return (now[0] - before[0]) / seconds, (now[1] - before[1]) / seconds


def _sum_of(page: str, name: str, *labels: str) -> float:
    lines = (line for line in page.splitlines() if line.startswith((f"{name}{{", f"{name} ")))
    return sum(
        float(line.rsplit(" ", 1)[1]) for line in lines if all(label in line for label in labels)
    )


def growth(rows: Sequence[Figures]) -> dict[str, float]:
    """What each further resource adds, from the smallest row to the largest."""
    first, last = (pick(rows, key=lambda row: row.resources) for pick in (min, max))
    more = last.resources - first.resources
    return {
        "tick_cpu_milliseconds": 1000.0
        * (last.tick_cpu_median_seconds - first.tick_cpu_median_seconds)
        / more,
        "peak_mebibytes": (last.peak_mebibytes - first.peak_mebibytes) / more,
        "status_writes_a_minute": (last.status_writes_a_minute - first.status_writes_a_minute)
        / more,
    }


def say(text: str) -> None:
    """To whoever waits."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def parser(text: str | None) -> argparse.ArgumentParser:
    """The options that say what is measured."""
    found = argparse.ArgumentParser(description=text)
    found.add_argument("--resources", type=int, nargs="+", default=[100, 500, 1000, 2000])
    found.add_argument("--minutes", type=float, default=5.0)
    found.add_argument("--tick-seconds", type=float, default=15.0)
    found.add_argument("--program", default="servingslo.cli", help="the module that is run")
    return found


def main() -> None:
    """Measure each number of resources, and print the rows as JSON, then the growth."""
    options = parser(__doc__).parse_args()
    rows: list[Figures] = []
    for resources in options.resources:
        rows.append(measure(options, resources, _watch))
        print_row(asdict(rows[-1]))
    if len({row.resources for row in rows}) > 1:
        print_row({"each_further_resource": growth(rows)})


def print_row(figures: Mapping[str, object]) -> None:
    """As JSON, with three decimals."""
    text = json.dumps(figures, default=str)
    rounded = json.loads(text, parse_float=lambda number: round(float(number), 3))
    sys.stdout.write(f"{json.dumps(rounded)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
