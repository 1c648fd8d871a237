"""What kopf calls: startup, lifecycle, validation, waking the controller."""
