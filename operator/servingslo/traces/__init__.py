"""Traces of requests as files have them: one line for each request, its arrival and its tokens."""
