"""Which batch limits should engines have? Each change of their flags restarts the pods.

Begin with `knob`; `canary` tries limits in one pod, `actuator` and `pod_template` write them.
Must not import another feature; without it limits are read and none is recommended.
"""
