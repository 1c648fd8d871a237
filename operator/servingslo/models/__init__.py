"""Pure numerics: workloads, service laws, queueing, batching, memory, latency, admission, cost."""
