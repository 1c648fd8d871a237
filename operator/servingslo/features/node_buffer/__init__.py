"""For how many replicas more are nodes ordered, before pods need them?

Begin with `knob`: it learns a node's lead (`waits`), sizes (`ahead`), and holds (`steps`).
Must not import another feature.
"""
