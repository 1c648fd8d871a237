"""Where does a trace come from, and how is it changed?

Generated workloads, transformations, traces rebuilt from metrics, files.
Must not import any other package of sim.
"""
