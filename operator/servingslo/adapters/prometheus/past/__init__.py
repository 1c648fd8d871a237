"""What happened before this process started?

Arrival rates of two weeks.
Must not import the reader; nothing here is asked in every tick.
"""
