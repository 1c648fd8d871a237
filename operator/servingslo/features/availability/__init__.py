"""Which share of requests gets a whole answer?

Begin with `insight`; it is reported and alerted on, never sized by.
Must not import another feature.
"""
