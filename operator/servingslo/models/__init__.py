"""Queueing and batching laws as functions of numbers, in packages named by their question.

Here: workloads, objectives, numerics that several packages share, cost.
Must not import estimation or policy, nor do I/O; the packages keep the order of the layers.
"""
