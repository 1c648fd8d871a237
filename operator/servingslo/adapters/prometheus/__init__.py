"""What does Prometheus report of the engines, pods and gateways of the whole cluster?

Client, refusals, queries, counts of gateways; rooms: reading (now), past (days and weeks).
Must not import the controller or adapters of other systems; rooms keep the order of the layers.
"""
