"""The features in force: one row each. Their order is that of what they decide and change."""

FEATURES: tuple[str, ...] = (
    "schedule",
    "error_budget",
    "latency_budget",
    "availability",
    "backlog",
    "variants",
    "keda_scaler",
    "budgets",
    "shards",
    "batch_limits",
    "degradation",
    "node_buffer",
    "dynamic_batches",
    "warm_replicas",
    "classes",
)
