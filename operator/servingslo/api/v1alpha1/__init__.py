"""Which fields does a ServingSLO have, in version servingslo.dev/v1alpha1?

Frozen models, snake_case in Python, camelCase in manifests; `kubectl explain` shows descriptions.
Must not import adapters, explain or the conversion; ranges hold here and at the API server.
"""

from servingslo.api.v1alpha1.budget import (
    BUDGET_KIND,
    BUDGET_PLURAL,
    ServingBudgetSpec,
    ServingBudgetStatus,
)
from servingslo.api.v1alpha1.spec import ServingSLOSpec
from servingslo.api.v1alpha1.status import ServingSLOStatus
from servingslo.api.v1alpha1.workload import KIND

GROUP = "servingslo.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
PLURAL = "servingslos"

__all__ = [
    "API_VERSION",
    "BUDGET_KIND",
    "BUDGET_PLURAL",
    "GROUP",
    "KIND",
    "PLURAL",
    "VERSION",
    "ServingBudgetSpec",
    "ServingBudgetStatus",
    "ServingSLOSpec",
    "ServingSLOStatus",
]
