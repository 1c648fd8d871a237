"""How do several processes share the resources, each deciding for its own?

Which shard a resource is on, which shards a process holds, how a resource is handed over.
Must not import another feature.
"""
