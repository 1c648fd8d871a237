"""Reads targets and pods, writes replica counts, arguments, status and events."""
