"""What would other autoscalers' own code decide?

One file each drives the code of a peer that the user has, with what it would see of the fleet.
Must not import scenarios, bounds, pools or backtest.
"""
