"""What may be drawn in a storm on the rig, and which part each of it breaks."""

# (kind, how often, shortest, longest spell in seconds); people's deeds last no time.
KINDS: tuple[tuple[str, int, float, float], ...] = (
    ("operator-killed", 4, 0.0, 3.0),
    ("operator-frozen", 4, 0.5, 15.0),
    ("prometheus-killed", 2, 2.0, 20.0),
    ("prometheus-frozen", 3, 1.0, 20.0),
    ("api-frozen", 3, 0.5, 10.0),
    ("api-killed", 1, 0.5, 5.0),
    ("etcd-killed", 1, 0.5, 5.0),
    ("pod-slow", 2, 5.0, 20.0),
    ("pod-nan", 2, 2.0, 15.0),
    ("pod-empty", 2, 2.0, 15.0),
    ("pod-kept", 2, 2.0, 15.0),
    ("other-scaler", 2, 3.0, 10.0),
    ("pod-deleted", 3, 0.0, 0.0),
    ("edits", 8, 0.0, 0.0),
    ("pauses", 4, 0.0, 0.0),
    ("recreates", 4, 0.0, 0.0),
    ("scales", 6, 0.0, 0.0),
    ("puts-back", 2, 2.0, 6.0),
)
_SERVER = {"api-frozen": "api", "api-killed": "api", "etcd-killed": "api"}
PARTS = _SERVER | {
    "operator-killed": "operator",
    "operator-frozen": "operator",
    "prometheus-killed": "prometheus",
    "prometheus-frozen": "prometheus",
}
POD_FAULTS = {
    "pod-slow": ("slowness", 3.0),
    "pod-nan": ("nan", 1.0),
    "pod-empty": ("empty", 1.0),
    "pod-kept": ("frozen", 1.0),
}
