"""Queueing and batching laws as functions of numbers, in rooms named by the question.

On this floor: workloads, objectives, numerics that several rooms share, cost and burn rates.
Must not import estimation or policy, nor do I/O; the rooms keep the order of the layers.
"""
