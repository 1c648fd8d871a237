"""Are real servers scaled through a surge, whose metrics and errors are their own?

`triton` and `llm_d_sim` are the scenarios; `system` runs a server behind each pod.
Must not import other scenarios.
"""
