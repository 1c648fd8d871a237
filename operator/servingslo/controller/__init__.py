"""What happens in a tick, and in which order?

The loop, the reconciler, joins, the registry; rooms: actuators, lease, recordings, reporting.
Must not import handlers or cli.
"""
