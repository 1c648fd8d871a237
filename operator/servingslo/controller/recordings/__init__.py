"""What did the operator observe, and does a replay decide the same?

Recordings as JSON lines, their replay, and the allowed ranges of their values.
Must not import any other package of controller.
"""
