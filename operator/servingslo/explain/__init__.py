"""Which reports of a decision are there, for people and machines?

Log line, events, metric samples, text, summary, document; room: conditions. All derive from it.
Must not import the controller or anything that does I/O.
"""
