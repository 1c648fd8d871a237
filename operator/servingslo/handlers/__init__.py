"""Functions that kopf calls: startup, lifecycle, validation, waking the controller."""
