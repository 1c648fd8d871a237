"""Which pods does a workload have, in which state, and how were they started?

The inventory and its records, failures, queues, refusals, the engine's container, ConfigMaps.
Must not import gateways; nothing is written here.
"""
