"""Trace files of requests: one line for each request, with its arrival and its tokens."""
