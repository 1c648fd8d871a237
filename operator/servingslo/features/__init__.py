"""What does the operator do beside keeping objectives by the count of replicas?

Begin with `catalogue`: one row a feature, one folder of its name.
Must not import another feature; the kernel imports none and names none.
"""
