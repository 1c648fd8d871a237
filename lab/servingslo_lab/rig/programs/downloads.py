"""Parts of the rig that are not compiled: CRDs of other projects, and the wheels of Triton."""

from collections.abc import Callable
from dataclasses import dataclass

from servingslo_lab.rig import triton
from servingslo_lab.rig.programs import upstream_crds


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """One part that is fetched ready-made.

    is_here: whether the cache has it, or this machine does not need it. fetch: downloads it; the
    cache's lock must be held.
    """

    label: str
    is_here: Callable[[], bool]
    fetch: Callable[[], None]


UPSTREAM_CRDS = Download(
    label=upstream_crds.LABEL, is_here=upstream_crds.all_here, fetch=upstream_crds.download_all
)
TRITON_WHEELS = Download(
    label=triton.LABEL,
    is_here=lambda: bool(triton.missing_for_triton()) or triton.installed_at().is_dir(),
    fetch=triton.install,
)
DOWNLOADS = (UPSTREAM_CRDS, TRITON_WHEELS)
