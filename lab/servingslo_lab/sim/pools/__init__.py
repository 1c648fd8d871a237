"""What if prefill and decode have separate pools?

The fleet of disaggregated serving, the flow of requests, its replay.
Must not import backtest or summaries.
"""
