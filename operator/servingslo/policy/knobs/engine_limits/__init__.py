"""Which batch limits should engines have? Each change of their flags restarts the pods.

Begin with `knob`; `search`, `canary` for one pod, `aftermath` for all pods, `put_back`.
Must not import dynamic batches.
"""
