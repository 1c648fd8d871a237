"""What would somebody else's HPA or ScaledObject have ordered on what was really seen?

The rule as far as a recording has its metrics, its replay, and the text; nothing here does I/O.
Must not import backtesting, demo or fitting.
"""
