"""Time to the first decision, time of a takeover, and what two idle operators use, on the rig.

    python -m tests.benchmarks.first_minute [--workloads 10] [--idle-seconds 120]

Ticks and scrapes come every 15 s, as by default. The operators are processes, so no image is
pulled; the rest is what `helm install` and `kubectl apply` take.
"""

import argparse
import os
import sys
import time
from pathlib import Path

from tests.integration.failover import candidate, leads
from tests.integration.operator_under_test import (
    Engines,
    Operator,
    Tenant,
    install_chart,
    process_use,
)

from servingslo_lab.rig.cluster import Rig

TICK_SECONDS = 15.0
SETTINGS = (f"--tick-seconds={TICK_SECONDS:g}", "--prometheus-timeout-seconds=10")
NODES = 4
PATIENCE_SECONDS = 120.0


def _say(what: str, value: str) -> None:
    sys.stdout.write(f"{what}: {value}\n")
    sys.stdout.flush()


def _decided(tenant: Tenant, name: str) -> bool:
    return "lastDecision" in tenant.status(name)


def _cpu_seconds(pid: int) -> float:
    """Of a process so far; `ps` tells whole seconds alone."""
    fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _first_decision(rig: Rig, tenant: Tenant) -> Operator:
    """From `helm install` to a decision in the status of the first resource."""
    tenant.create_deployment("chat-0")
    began = time.monotonic()
    install_chart(rig)
    installed = time.monotonic() - began
    first = candidate(rig, *SETTINGS)
    first.start()
    ready = time.monotonic() - began
    tenant.create_slo("chat-0")
    rig.wait_for(
        lambda: _decided(tenant, "chat-0"),
        what="the first decision",
        timeout_seconds=PATIENCE_SECONDS,
    )
    took = time.monotonic() - began
    _say("helm install", f"{installed:.1f} s; operator ready after {ready:.1f} s")
    _say("install, apply, first decision", f"{took:.1f} s")
    return first


def _idle(tenant: Tenant, pair: tuple[Operator, Operator], count: int, seconds: float) -> None:
    for number in range(1, count):
        tenant.create_deployment(f"chat-{number}")
        tenant.create_slo(f"chat-{number}")
    tenant.wait(
        lambda: all(_decided(tenant, name) for name in tenant.slo_names()),
        what="all are decided for",
        timeout_seconds=PATIENCE_SECONDS,
    )
    time.sleep(TICK_SECONDS)
    pids = [one.process.pid or 0 for one in pair if one.process is not None]
    before = [_cpu_seconds(pid) for pid in pids]
    time.sleep(seconds)
    for role, pid, cpu in zip(("leader", "standby"), pids, before, strict=True):
        share, mebibytes = 100 * (_cpu_seconds(pid) - cpu) / seconds, process_use(pid)[1]
        _say(f"idle, {role}, {count} resources", f"{share:.1f} % of a core, {mebibytes:.0f} MiB")


def _takeover(rig: Rig, tenant: Tenant, pair: tuple[Operator, Operator]) -> None:
    first, second = pair
    assert first.process is not None
    began = time.monotonic()
    first.process.stop(kill=True)
    tenant.patch_slo({"replicas": {"min": 2, "max": 4}}, name="chat-0")
    rig.wait_for(lambda: leads(second), what="the other leads", timeout_seconds=PATIENCE_SECONDS)
    leading = time.monotonic() - began
    rig.wait_for(
        lambda: tenant.replicas("chat-0") == 2,
        what="its first order",
        timeout_seconds=PATIENCE_SECONDS,
    )
    took = time.monotonic() - began
    _say("a leader killed", f"the other leads after {leading:.1f} s, orders after {took:.1f} s")


def main() -> None:
    """Measure all of it once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", type=int, default=10)
    parser.add_argument("--idle-seconds", type=float, default=120.0)
    given = parser.parse_args()
    with Rig.start() as rig:
        rig.add_nodes(NODES)
        engines = Engines(rig)
        rig.configure_prometheus(
            http_sd_url=f"{engines.url}/sd", scrape_interval_seconds=TICK_SECONDS
        )
        tenant = Tenant(rig, rig.create_namespace("first-minute"), engines)
        first = _first_decision(rig, tenant)
        pair = first, candidate(rig, *SETTINGS)
        pair[1].start()
        _idle(tenant, pair, given.workloads, given.idle_seconds)
        _takeover(rig, tenant, pair)
        _say("load of the machine", " ".join(Path("/proc/loadavg").read_text("utf-8").split()[:3]))


if __name__ == "__main__":
    main()
