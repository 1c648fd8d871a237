"""How does the operator speak to an engine itself? Only to addresses that an administrator allows.

Begin with `channel`; a feature says what is asked and what is changed.
Must not import a feature.
"""
