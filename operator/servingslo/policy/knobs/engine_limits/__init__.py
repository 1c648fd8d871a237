"""Batch limits of engines: flags in the pod template, so that each change restarts the pods.

Begin with `tuning`; `search` finds limits, `canary` tries them on one pod, `aftermath` checks all
pods afterwards, `put_back` handles a client that undoes them. Does not import dynamic batches.
"""
