"""The laws of one load compiled by numba, the optional extra `compiled`; results are the same."""
