"""Which commands does the lab add to `servingslo`?

backtest, demo, fit, history, migrate, shadow, size and top, by entry points, and what they share.
Sim and rig must not import it.
"""
