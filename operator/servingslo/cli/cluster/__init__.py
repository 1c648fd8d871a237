"""What does a live cluster show, and what can be put back?

The commands explain, record and release.
Must not import running.
"""
