"""The features in force: one row each. Their order is that of what they decide and change."""

FEATURES: tuple[str, ...] = (
    "schedule",
    "error_budget",
    "latency_budget",
    "availability",
    "keda_scaler",
    "budgets",
    "dynamic_batches",
)
