"""What does a live cluster show, and what can be put back?

The commands explain, history, record, release and top, and their columns.
Must not import running.
"""
