"""Work that may wait: how many replicas finish it in time, and how fast it may be sent now?

Live requests come first: the work is sent in a class of requests that orders no replicas.
Must not import another feature.
"""
