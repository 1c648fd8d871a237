"""Variants: one model on several cards or prices, at least cost for one promise.

How traffic is split, which counts carry the demand, when to move, what is lost without us.
It must not import `policy.planner`, an adapter or the controller.
"""
