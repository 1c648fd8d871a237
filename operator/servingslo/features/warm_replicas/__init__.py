"""How many replicas sleep, and which are put to sleep and woken? They are back within seconds.

Begin with `mix`; `knob` chooses the pods, `actuator` asks their engines.
Must not import another feature.
"""
