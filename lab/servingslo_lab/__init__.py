"""What runs beside the operator, never in a cluster: simulator, backtest, fit, rig and demo."""
