"""What does the operator do beside keeping objectives by the count of replicas?

One folder a feature, one row in `catalogue`. The kernel imports none of them and names none.
"""
