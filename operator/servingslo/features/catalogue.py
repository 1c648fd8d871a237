"""The features in force: one row each. Their order is that of what they decide and change."""

FEATURES: tuple[str, ...] = (
    "error_budget",
    "latency_budget",
    "availability",
    "keda_scaler",
    "budgets",
    "degradation",
    "dynamic_batches",
)
