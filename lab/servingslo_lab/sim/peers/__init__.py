"""What would other autoscalers' own code decide?

One file each drives a peer's code with what it would see; the HPA's arithmetic is written again.
Must not import scenarios, bounds, pools or backtest.
"""
