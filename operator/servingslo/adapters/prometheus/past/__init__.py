"""What happened before this process started?

Arrival rates of two weeks, misses of an error budget.
Must not import the reader; nothing here is asked in every tick.
"""
