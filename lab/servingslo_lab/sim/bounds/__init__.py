"""How cheap could the same objectives have been?

A proven lower bound, the clairvoyant oracle, schedules in hindsight.
Must not import backtest, scenarios or pools.
"""
