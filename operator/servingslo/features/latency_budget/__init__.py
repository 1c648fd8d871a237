"""Where does the time of a request go, and what grew since the objectives were met?

Only reported: nothing here decides a count.
"""
