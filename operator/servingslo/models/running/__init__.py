"""How many sequences run on a replica?

The law of the number in system, bursts, the load of one replica, levels of a pool.
Must not import waits, tokens or fleet.
"""
