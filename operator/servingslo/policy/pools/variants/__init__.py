"""Variants: one model on several cards or prices, at least cost for one promise.

What pools carry together, which counts carry the demand at least cost, and when to move to them.
It must not import `policy.planner`, an adapter or the controller.
"""
