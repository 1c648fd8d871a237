"""servingslo.dev/v1alpha1: the ServingSLO resource as frozen pydantic models.

Names in Python are snake_case, in manifests camelCase. Descriptions are what `kubectl explain`
shows; ranges and rules are enforced here and, by the generated schema, at the API server.
"""

from servingslo.api.v1alpha1.spec import KIND, ServingSLOSpec
from servingslo.api.v1alpha1.status import ServingSLOStatus

GROUP = "servingslo.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
PLURAL = "servingslos"

__all__ = [
    "API_VERSION",
    "GROUP",
    "KIND",
    "PLURAL",
    "VERSION",
    "ServingSLOSpec",
    "ServingSLOStatus",
]
