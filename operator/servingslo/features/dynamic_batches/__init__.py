"""Which limits should dynamic batches (Triton) have? A server that restarts loses them.

Begin with `knob`; `search` finds limits, `servers` says what each pod has.
Must not import another feature; without it `spec.engine.dynamicBatching` says how batches form.
"""
