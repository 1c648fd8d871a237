"""A real Prometheus that scrapes the targets of an HTTP discovery endpoint."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import yaml

from servingslo_lab.rig.processes import ManagedProcess, ProcessFamily
from servingslo_lab.rig.programs import versions
from servingslo_lab.rig.waiting import free_port, http_get, http_post

ENGINES_JOB = "engines"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapedProxy:
    """A gateway's proxy as a PodMonitor would find it: address ("host:port"), path and labels."""

    name: str
    address: str
    path: str
    labels: Mapping[str, str]

    def as_job(self) -> dict[str, Any]:
        """An entry of scrape_configs."""
        targets = {"targets": [self.address], "labels": dict(self.labels)}
        return {"job_name": self.name, "metrics_path": self.path, "static_configs": [targets]}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapePlan:
    """Prometheus' targets and scrape interval.

    http_sd_url: answers with Prometheus's HTTP discovery format; None scrapes no engines. The
        labels namespace, pod and container come from there, as a PodMonitor would set them.
    engines_prefix: replaces the prefix of the engines' metrics; None: no change.
    static_targets: job name to "host:port" addresses, for example the operator's own metrics.
    proxies: of gateways.
    retention_days: retention of a Prometheus that is started with the plan.
    oldest_sample_days: the largest age of samples with their own timestamps.
    """

    http_sd_url: str | None = None
    engines_prefix: str | None = None
    scrape_interval_seconds: float = 1.0
    static_targets: Mapping[str, Sequence[str]] = field(default_factory=dict)
    proxies: Sequence[ScrapedProxy] = ()
    oldest_sample_days: int | None = None
    retention_days: int = 1

    def with_proxy(self, proxy: ScrapedProxy) -> Self:
        """The plan with one more proxy."""
        return replace(self, proxies=(*self.proxies, proxy))

    def as_config(self) -> dict[str, Any]:
        """The content of prometheus.yml."""
        interval = _duration(self.scrape_interval_seconds)
        jobs: list[dict[str, Any]] = [
            {"job_name": name, "static_configs": [{"targets": list(addresses)}]}
            for name, addresses in self.static_targets.items()
        ]
        jobs += [proxy.as_job() for proxy in self.proxies]
        if self.http_sd_url is not None:
            # Discovery as often as scraping: a new Ready pod appears one interval later.
            discovery = {"url": self.http_sd_url, "refresh_interval": interval}
            engines: dict[str, Any] = {"job_name": ENGINES_JOB, "http_sd_configs": [discovery]}
            if self.engines_prefix is not None:
                renamed = {"source_labels": ["__name__"], "regex": "[^:]+:(.*)"}
                renamed |= {"target_label": "__name__", "replacement": f"{self.engines_prefix}$1"}
                engines["metric_relabel_configs"] = [renamed]
            jobs.append(engines)
        config: dict[str, Any] = {
            "global": {
                "scrape_interval": interval,
                "scrape_timeout": interval,
                "evaluation_interval": interval,
            },
            "scrape_configs": jobs,
        }
        if self.oldest_sample_days is not None:
            window = {"out_of_order_time_window": f"{self.oldest_sample_days}d"}
            config["storage"] = {"tsdb": window}
        return config


class Prometheus:
    """The Prometheus process and its configuration file."""

    def __init__(
        self,
        *,
        binaries: Mapping[str, Path],
        work_dir: Path,
        family: ProcessFamily,
        plan: ScrapePlan,
    ) -> None:
        self.plan = plan
        directory = work_dir / "prometheus"
        self.data_directory = directory / "data"
        self.data_directory.mkdir(parents=True)
        self._config_path = directory / "prometheus.yml"
        self._write_config()
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.process: ManagedProcess = family.add(
            "prometheus",
            [
                str(binaries[versions.PROMETHEUS.name]),
                f"--config.file={self._config_path}",
                f"--storage.tsdb.path={self.data_directory}",
                f"--storage.tsdb.retention.time={plan.retention_days}d",
                "--storage.tsdb.no-lockfile",  # a killed one must start again
                f"--web.listen-address=127.0.0.1:{port}",
                "--web.enable-lifecycle",
                "--log.level=warn",
            ],
        )

    def start(self) -> None:
        """Start Prometheus. Raises: RigError when it cannot be executed."""
        self.process.start()

    def wait_ready(self) -> None:
        """Wait until Prometheus answers queries. Raises: RigError when it does not."""
        self.process.wait_ready(f"{self.url}/-/ready")

    def configure(self, plan: ScrapePlan) -> None:
        """Apply this scrape plan. Raises: RigError when Prometheus refuses it."""
        self.plan = plan
        self._write_config()
        if self.process.running:
            http_post(f"{self.url}/-/reload")

    def answers(self) -> bool:
        """Whether Prometheus is ready."""
        return http_get(f"{self.url}/-/ready") is not None

    def _write_config(self) -> None:
        self._config_path.write_text(yaml.safe_dump(self.plan.as_config()), encoding="utf-8")


def _duration(seconds: float) -> str:
    """Prometheus's notation for a duration, which has no fractions."""
    return f"{round(seconds * 1000)}ms"
