"""Which limits should dynamic batches (Triton) have? A server that restarts loses them.

Begin with `knob`; `search` finds limits, `servers` says what each pod has, `model_repository` reads
and sets it. Without it, `spec.engine.dynamicBatching` says how batches form.
"""
