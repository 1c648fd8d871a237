"""Which programs does the rig need, and where do they come from?

Versions, the toolchain, cache, progress and minutes of a build, downloads, upstream CRDs.
Must not import kubernetes, simulated or gateways.
"""
