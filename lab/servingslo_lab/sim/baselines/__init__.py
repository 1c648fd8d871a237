"""What would other autoscalers decide?

Their published rules, one file each, their settings, and their view of the fleet.
Must not import scenarios, bounds, pools or backtest.
"""
