"""NVIDIA's DCGM exporter: what it calls the GPU fields that are read.

Source: etc/default-counters.csv of NVIDIA/dcgm-exporter. Framebuffer sizes are in MiB, utilization
in percent, power in watts; XID is the code of the last error, 0 when there was none.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GPUMetrics:
    """Metric names of GPU fields, and the labels that tell GPUs and their pods apart.

    gpu_labels: index of the card, then of its MIG instance where there is one. product_label: what
    the card is, such as 'NVIDIA H100 80GB HBM3'. pod_labels: pairs
    of (namespace, pod) labels. A scrape with honorLabels keeps the workload's own names; without
    it Prometheus writes the exporter's pod there and moves the workload's to exported_*, so
    exported_* wins where it is present.
    """

    utilization_percent: str = "DCGM_FI_DEV_GPU_UTIL"
    memory_used_mebibytes: str = "DCGM_FI_DEV_FB_USED"
    memory_free_mebibytes: str = "DCGM_FI_DEV_FB_FREE"
    power_watts: str = "DCGM_FI_DEV_POWER_USAGE"
    xid_error: str = "DCGM_FI_DEV_XID_ERRORS"
    gpu_labels: tuple[str, str] = ("gpu", "GPU_I_ID")
    product_label: str = "modelName"
    pod_labels: tuple[tuple[str, str], ...] = (
        ("exported_namespace", "exported_pod"),
        ("namespace", "pod"),
    )

    @property
    def names(self) -> tuple[str, ...]:
        """All metric names, in the order of the fields."""
        return (
            self.utilization_percent,
            self.memory_used_mebibytes,
            self.memory_free_mebibytes,
            self.power_watts,
            self.xid_error,
        )


DCGM = GPUMetrics()
