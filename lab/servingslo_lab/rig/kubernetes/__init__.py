"""How does a real control plane with simulated nodes run on this machine?

etcd and the servers of Kubernetes, their credentials, KWOK and its stages.
Must not import simulated or gateways.
"""
