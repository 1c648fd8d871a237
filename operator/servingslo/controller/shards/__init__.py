"""Which shard decides which resource, and which shards does a process hold?

Pure functions of what is known about resources and Leases; no I/O, no clock.
Must not import any other package of controller.
"""
