"""ServingSLO, an HPA and KEDA on the same traffic, live on the rig.

    python -m tests.benchmarks.compare [--seeds 3] [--minutes 12] [--picture out/compare.png]

Each scales a Deployment of its own, of simulated engines, by its own code: our operator, and KEDA's
operator and metrics server with the HPA controller of Kubernetes. They run side by side, so that
what else the machine does meets all of them. Shares are of the clients' own records.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from tests.benchmarks.simulator import CONVERSATION
from tests.integration.keda_manifests import DATA, SCALED_OBJECTS
from tests.integration.keda_processes import run_metrics_server, run_operator
from tests.integration.manifests import OBJECTIVES
from tests.integration.operator_under_test import Engines, Operator, Tenant, install_chart

from servingslo.api.v1alpha1 import GROUP, PLURAL, VERSION
from servingslo.units import SECONDS_PER_HOUR, SECONDS_PER_MINUTE, parse_duration_seconds
from servingslo_lab.cli.demo.panels import frame_lightly, pyplot
from servingslo_lab.errors import RigError
from servingslo_lab.rig.cluster import Rig, RigOptions
from servingslo_lab.rig.kubernetes.control_plane import FrontProxy
from servingslo_lab.rig.programs.upstream_crds import KEDA, install_crds
from servingslo_lab.rig.waiting import free_port

WORKLOAD = "chat"
LEAST, MOST = 2, 12
TARGET_RATIO = 0.95
# Defaults of the operator, of kube-controller-manager and of KEDA's pollingInterval in the guide.
TICK_SECONDS, HPA_SYNC_SECONDS, POLLING_SECONDS = 15.0, 15.0, 15
READY_DELAY_SECONDS = 30
SCRAPE_INTERVAL_SECONDS = 5.0
TRACE_START_SECONDS = 900.0
# Of the twelve minutes a crowd takes the middle third.
CROWD_FACTOR, CROWD_BEGIN, CROWD_END = 2.5, 1 / 3, 2 / 3
RATE_SCALE = 1.5
_LOOK_SECONDS = 1.0
_LONGEST_ANSWER_SECONDS = 60.0
_COLORS = {"servingslo": "#2a9d8f", "hpa": "#6c757d", "keda": "#e76f51"}


def _per_replica(gauge: str, target: float) -> dict[str, Any]:
    """A trigger: the sum of a gauge of the engines, with a target for each replica."""
    return {
        "type": "prometheus",
        "metricType": "AverageValue",
        "metadata": {
            "query": f'sum({gauge}{{namespace="NAMESPACE"}})',
            "threshold": f"{target:g}",
        },
    }


# The thresholds of llm-d's workload-autoscaling guide. There the endpoint picker counts; here,
# without one, the engines do.
_RUNNING = _per_replica("vllm:num_requests_running", 16.0)
_WAITING = _per_replica("vllm:num_requests_waiting", 1.0)
TRIGGERS: Mapping[str, tuple[dict[str, Any], ...]] = {
    "hpa": (_RUNNING,),
    "keda": (_WAITING, _RUNNING),
}
_SERVING_SLO = {
    "apiVersion": f"{GROUP}/{VERSION}",
    "kind": "ServingSLO",
    "metadata": {"name": WORKLOAD},
    "spec": {
        "targetRef": {"kind": "Deployment", "name": WORKLOAD},
        "objectives": list(OBJECTIVES),
        "replicas": {"min": LEAST, "max": MOST},
    },
}
CONTENDERS = ("servingslo", *TRIGGERS)
TITLES = {
    "servingslo": "ServingSLO",
    "hpa": "HPA: 16 running requests a replica",
    "keda": "KEDA as in llm-d's guide: 1 waiting, 16 running a replica",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One contender under the traffic of one seed.

    minutes: for each, requests that arrived and those of them in SLO. counts: seconds since the
    traffic began, and the replicas ordered then.
    """

    contender: str
    seed: int
    requests: int
    in_slo: int
    replica_hours: float
    minutes: tuple[tuple[int, int], ...]
    counts: tuple[tuple[float, int], ...]

    @property
    def share_ratio(self) -> float:
        """Of all requests that arrived; one that is not answered at the end misses."""
        return self.in_slo / self.requests


@contextmanager
def contest() -> Iterator[tuple[Rig, Engines]]:
    """Rig, engines, Prometheus, our operator and KEDA's two programs."""
    proxy = FrontProxy(
        certificate=DATA / "loopback.pem",
        key=DATA / "loopback.pem",
        authority=DATA / "loopback-ca.pem",
    )
    options = RigOptions(front_proxy=proxy, hpa_sync_period_seconds=HPA_SYNC_SECONDS)
    with tempfile.TemporaryDirectory() as folder, Rig.start(options) as rig:
        rig.add_nodes(4)
        engines = Engines(rig)
        rig.configure_prometheus(
            http_sd_url=f"{engines.url}/sd", scrape_interval_seconds=SCRAPE_INTERVAL_SECONDS
        )
        install_crds(rig.api_client(), KEDA)
        port = free_port()
        run_operator(rig, Path(folder), port)
        run_metrics_server(rig, Path(folder), port)
        install_chart(rig)
        operator = Operator(rig, f"--tick-seconds={TICK_SECONDS:g}")
        operator.start()
        yield rig, engines
        operator.stop()


def race(rig: Rig, engines: Engines, seed: int, minutes: float) -> list[Run]:
    """All contenders under the traffic of one seed, at the same time."""
    tenants = {name: _tenant(rig, engines, name, seed) for name in CONTENDERS}
    seconds = minutes * SECONDS_PER_MINUTE
    for tenant in tenants.values():
        tenant.begin_traffic(CONVERSATION.resolve(), **_plan(seed, seconds))
    began = time.monotonic()
    counts: dict[str, list[tuple[float, int]]] = {name: [] for name in tenants}
    while (at := time.monotonic() - began) < seconds:
        for name, tenant in tenants.items():
            counts[name].append((round(at, 1), tenant.replicas(WORKLOAD)))
        time.sleep(_LOOK_SECONDS)
    for tenant in tenants.values():
        _wait_for_answers(tenant)
    found = [_run(name, seed, tenant, counts[name]) for name, tenant in tenants.items()]
    for tenant in tenants.values():
        tenant.end_traffic()
        rig.delete_namespace(tenant.namespace)
    return found


def _tenant(rig: Rig, engines: Engines, contender: str, seed: int) -> Tenant:
    tenant = Tenant(rig, rig.create_namespace(f"{contender}-{seed}"), engines)
    tenant.create_deployment(WORKLOAD, replicas=LEAST, ready_delay=f"{READY_DELAY_SECONDS}s")
    if contender in TRIGGERS:
        tenant.custom.create_namespaced_custom_object(
            namespace=tenant.namespace,
            body=_scaled_object(rig, tenant.namespace, TRIGGERS[contender]),
            field_validation="Strict",
            **SCALED_OBJECTS,
        )
    else:
        tenant.custom.create_namespaced_custom_object(
            GROUP, VERSION, tenant.namespace, PLURAL, _SERVING_SLO, field_validation="Strict"
        )
    return tenant


def _scaled_object(
    rig: Rig, namespace: str, triggers: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    text = json.dumps(list(triggers)).replace("NAMESPACE", namespace)
    filled = json.loads(text)
    for trigger in filled:
        trigger["metadata"]["serverAddress"] = rig.prometheus_url
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": WORKLOAD},
        "spec": {
            "scaleTargetRef": {"name": WORKLOAD},
            "minReplicaCount": LEAST,
            "maxReplicaCount": MOST,
            "pollingInterval": POLLING_SECONDS,
            "triggers": filled,
        },
    }


def _plan(seed: int, seconds: float) -> dict[str, Any]:
    thresholds = {o["metric"]: parse_duration_seconds(str(o["threshold"])) for o in OBJECTIVES}
    crowd = {
        "factor": CROWD_FACTOR,
        "start_seconds": CROWD_BEGIN * seconds,
        "end_seconds": CROWD_END * seconds,
    }
    return {
        "scale": RATE_SCALE,
        "start_seconds": TRACE_START_SECONDS,
        "duration_seconds": seconds,
        "surges": [crowd],
        "ttft_seconds": thresholds["ttft"],
        "tpot_seconds": thresholds["tpot"],
        "seed": seed,
    }


def _wait_for_answers(tenant: Tenant) -> None:
    """Let the last requests end; those that take too long stay unanswered."""
    end = time.monotonic() + _LONGEST_ANSWER_SECONDS
    while time.monotonic() < end:
        served = tenant.served(WORKLOAD)
        if served["over"] >= served["offered"]:
            return
        time.sleep(_LOOK_SECONDS)


def _run(contender: str, seed: int, tenant: Tenant, counts: list[tuple[float, int]]) -> Run:
    served = tenant.served(WORKLOAD)
    return Run(
        contender=contender,
        seed=seed,
        requests=served["offered"],
        in_slo=served["in_slo"],
        replica_hours=served["replica_seconds"] / SECONDS_PER_HOUR,
        minutes=tuple((one["offered"], one["in_slo"]) for one in served["minutes"]),
        counts=tuple(counts),
    )


def table(runs: Sequence[Run]) -> str:
    """A row for each contender, over its seeds."""
    lines = [
        "| contender | seeds | in SLO % (least) | replica-hours | most replicas |",
        "|---|---|---|---|---|",
    ]
    for name in CONTENDERS:
        mine = [run for run in runs if run.contender == name]
        shares = [100 * run.share_ratio for run in mine]
        hours = mean(run.replica_hours for run in mine)
        most = max(count for run in mine for _, count in run.counts)
        cells = (
            TITLES[name], str(len(mine)), f"{mean(shares):.1f} ({min(shares):.1f})",
            f"{hours:.3f}", str(most),
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(runs: Sequence[Run], path: Path) -> None:
    """Replicas over time and the share in SLO of each minute, of the first seed."""
    plt = pyplot()
    if plt is None:
        return
    figure, (above, below) = plt.subplots(2, 1, figsize=(9, 6), sharex=True)
    for run in (run for run in runs if run.seed == runs[0].seed):
        color, title = _COLORS[run.contender], TITLES[run.contender]
        at = [seconds / SECONDS_PER_MINUTE for seconds, _ in run.counts]
        above.step(at, [count for _, count in run.counts], where="post", color=color, label=title)
        shares = [
            (minute + 0.5, 100 * good / offered)
            for minute, (offered, good) in enumerate(run.minutes)
            if offered
        ]
        below.plot([at for at, _ in shares], [share for _, share in shares], color=color)
    below.axhline(100 * TARGET_RATIO, color="black", linewidth=0.8, linestyle="--")
    above.set_ylabel("replicas ordered")
    below.set_ylabel("in SLO, % of each minute")
    below.set_xlabel("minutes")
    above.legend(loc="upper left", fontsize=8, frameon=False)
    frame_lightly((above, below))
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(arguments: Sequence[str], say: Callable[[str], None] = print) -> int:
    """Run, print the table, and keep what was seen next to the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=12.0)
    parser.add_argument("--picture", type=Path, default=Path("out/compare.png"))
    given = parser.parse_args(arguments)
    runs: list[Run] = []
    try:
        with contest() as (rig, engines):
            for seed in range(1, given.seeds + 1):
                found = race(rig, engines, seed, given.minutes)
                runs += found
                for run in found:
                    say(
                        f"seed {seed} {run.contender}: {run.share_ratio:.1%} of {run.requests} "
                        f"requests in SLO, {run.replica_hours:.3f} replica-hours"
                    )
    except RigError as error:
        say(str(error))
        return 1
    draw(runs, given.picture)
    record = given.picture.with_suffix(".json")
    record.write_text(json.dumps([asdict(run) for run in runs]), encoding="utf-8")
    say(table(runs))
    say(f"picture: {given.picture}, what was seen: {record}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
