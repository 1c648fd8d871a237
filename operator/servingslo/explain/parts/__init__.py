"""How is one part of a decision reported, in explain, the log and the gauges together?

One module a part; so a new part is one file and a line in each of them.
Must not import text, log lines, or conditions.
"""
