"""How does a real Envoy stand in front of the rig's engines?

Envoy Gateway's translator, istiod, an endpoint picker, their files and objects.
Must not import simulated.
"""
