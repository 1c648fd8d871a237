"""What does the cluster report of a workload, and what is written back?

Workloads, replica counts, the operator's own objects; rooms: api, pods, gateways.
Must not import the controller or adapters of other systems; rooms keep the order of the layers.
"""
