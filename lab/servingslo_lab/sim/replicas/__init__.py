"""What does a simulated replica do at each step?

The kernel and its memory, batches, clients, routing, timers; in Python or compiled.
Must not import any other package of sim.
"""
