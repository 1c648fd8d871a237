"""Who learns of a decision, and when is it worth a write?

Log lines, events, statuses and their pace, stored state, news of readings, outages.
Must not import the loop, the reconciler, lease or recordings; decides nothing.
"""
