"""What the lab raises on purpose, beside the product's own errors."""

from servingslo.errors import ServingSLOError


class RigError(ServingSLOError):
    """The rig could not be built or started."""
