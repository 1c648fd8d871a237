"""Where does the time of a request go, and what grew since the objectives were met?

Begin with `insight`; it is only reported: nothing here decides a count.
Must not import another feature.
"""
