"""Settings that the operator may change for a workload: a file each, and a row in `catalogue`."""
