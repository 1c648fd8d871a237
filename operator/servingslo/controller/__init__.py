"""The tick: read, join, plan, write, report."""
