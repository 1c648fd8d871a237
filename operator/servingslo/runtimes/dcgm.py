"""NVIDIA's DCGM exporter: its metric names of the GPU fields.

Source: etc/default-counters.csv of NVIDIA/dcgm-exporter. Framebuffer sizes are in MiB, utilization
in percent, power in watts; XID is the code of the last error, 0 if there was none.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GPUMetrics:
    """Metric names of GPU fields, and the labels that identify GPUs and their pods.

    gpu_labels: index of the card, then of its MIG instance if it has one. product_label: the card's
    product name, such as 'NVIDIA H100 80GB HBM3'. pod_labels: pairs of (namespace, pod) labels. A
    scrape with honorLabels keeps the workload's names. Without it, Prometheus writes the exporter's
    pod there and moves the workload's to exported_*. So exported_* wins if present.
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
