"""How does a fleet serve a trace on a virtual clock?

Its definition, engines that start and fail, observations, and the result of a run.
Must not import policies, scenarios, bounds or baselines.
"""
