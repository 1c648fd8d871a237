"""How does a bound get into a gateway's object, and does it apply to one workload only?

Forms of the bound, reading and writing it, checks of routes, rules and Services.
Must not import pods.
"""
