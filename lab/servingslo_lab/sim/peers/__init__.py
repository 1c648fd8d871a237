"""What would other autoscalers' own code decide?

One file each drives the code of a peer that the user has, with what it would see of the fleet. The
HPA's controller has no package: its arithmetic is written again.
Must not import scenarios, bounds, pools or backtest.
"""
