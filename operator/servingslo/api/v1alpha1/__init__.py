"""Which fields does a ServingSLO have, in every version of servingslo.dev?

Frozen models, snake_case in Python, camelCase in manifests; `kubectl explain` shows descriptions.
Must not import adapters, explain or the conversion; ranges hold here and at the API server.
"""

from servingslo.api.v1alpha1.spec import ServingSLOSpec
from servingslo.api.v1alpha1.status import ServingSLOStatus
from servingslo.api.v1alpha1.workload import KIND

GROUP = "servingslo.dev"
# Served with one schema, and never taken away while an object may be stored in it; the first is
# stored, read and written.
VERSIONS = ("v1beta1", "v1alpha1")
VERSION = VERSIONS[0]
API_VERSION = f"{GROUP}/{VERSION}"
PLURAL = "servingslos"

__all__ = [
    "API_VERSION",
    "GROUP",
    "KIND",
    "PLURAL",
    "VERSION",
    "VERSIONS",
    "ServingSLOSpec",
    "ServingSLOStatus",
]
