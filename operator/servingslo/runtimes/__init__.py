"""Names of each runtime's metrics and knobs, as data; an explicit catalogue."""
