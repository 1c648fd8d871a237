"""How do several pools keep one promise?

Division of demand and objectives, order of writes; `policy.planner` plans each pool by itself.
Must not import an adapter or the controller.
"""
