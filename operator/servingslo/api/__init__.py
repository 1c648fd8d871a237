"""What may a user write into a ServingSLO, and what does it mean to the planner?

Conversion, refusals, runtime profiles, the generated CRD; room: v1alpha1.
Must not import adapters, the controller or explain.
"""
