"""Which counts of several cards or prices keep the objectives of one model at least cost?

Begin with `divider`; `search` finds the counts, `moves` says when to change to them.
Must not import another feature.
"""
