"""All I/O of the operator."""
