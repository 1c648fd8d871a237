"""Which bounds hold at which times of day and days of the week?

Begin with `windows`; the plan stays free inside the bounds.
Must not import another feature.
"""
