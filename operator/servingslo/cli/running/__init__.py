"""How does the operator start and stop?

`servingslo run`: its options, the adapters, loop and handlers put together, its log.
Must not import cluster or sizing.
"""
