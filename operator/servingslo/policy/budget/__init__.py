"""How do several resources share one number of GPUs?

Claims are made from decisions; the shares follow from minimum, priority and what a GPU keeps.
Must not import an adapter or the controller; reads no clock.
"""
