"""Which commands does the lab add to `servingslo`?

backtest, demo, fit and shadow, by entry points; packages: backtesting, demo, fitting, shadowing.
Sim and rig must not import it.
"""
