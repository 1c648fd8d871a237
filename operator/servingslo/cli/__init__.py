"""Which commands are there, and which options do they share?

The entry point, small commands, access to a cluster; rooms: cluster, running.
Must not import the lab; help and small commands import their work when it is used.
"""
