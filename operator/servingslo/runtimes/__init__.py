"""What is each engine called, which metrics and flags does it have, and what is it started with?

Profiles and the catalogue, names of gateways and GPUs; rooms: engines, launch, shell.
Must not import estimation, policy or anything that does I/O; rooms keep the order of the layers.
"""
