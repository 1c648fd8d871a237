"""What may a user write into a ServingSLO, and what does it mean to the planner?

Conversion, refusals, runtime profiles, the generated CRD; rooms: v1alpha1, autoscalers (of others).
Must not import adapters, the controller or explain.
"""
