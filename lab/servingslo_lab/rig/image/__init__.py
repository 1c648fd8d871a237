"""Does the operator's image run as a pod, without a container runtime or an image registry?

The Dockerfile's own steps in a root folder, and a kubelet's part for the pods that run it.
Must not import simulated.
"""
