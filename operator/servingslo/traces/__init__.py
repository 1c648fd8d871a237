"""Which requests does a trace have?

Trace files, one line for each request with its arrival and tokens, and the cells of a line.
Must not import policy, explain or the lab.
"""
