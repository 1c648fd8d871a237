"""What does a backtest need, print and draw?

Its inputs, traces and pasts; text, charts, timelines and its page.
Must not import demo, fitting or rig.
"""
