"""Where does a service law come from?

Sources of samples, pages of metrics, the fit and its text.
Must not import backtesting, demo or rig.
"""
