"""Which pods provide capacity, how soon are new ones ready, and which batch limits do they have?

Cold starts, health, pods slower than their siblings, and the batch limits in force.
Must not import forecast.
"""
