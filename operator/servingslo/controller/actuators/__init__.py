"""What the operator may change for a workload: one file for each thing, one row in `catalogue`."""
