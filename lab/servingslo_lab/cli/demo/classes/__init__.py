"""What do classes do for chat and for a background job on the same replicas?

Its system, its verdict, its picture; begin with `run`.
Must not import other scenarios.
"""
