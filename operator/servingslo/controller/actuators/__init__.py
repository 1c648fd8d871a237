"""Which settings may the operator change for a workload?

A file for each setting, and a row in `catalogue`.
Must not import the loop, the reconciler or reporting.
"""
