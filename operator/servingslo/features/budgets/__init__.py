"""How do several resources share one number of GPUs, a ServingBudget?

Claims are made from decisions; the shares follow from minimum, priority and what a GPU keeps.
Must not import another feature.
"""
