"""Where does a trace come from, and how is it changed?

Files of requests, generated workloads, transformations, traces rebuilt from metrics.
Must not import any other package of sim.
"""
