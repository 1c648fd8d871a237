"""The tick: read, join, plan, write, tell."""
