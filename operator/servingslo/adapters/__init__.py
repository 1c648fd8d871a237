"""Which systems outside this process does the operator ask?

The clock, its own metrics page; packages: engines, keda, kubernetes, prometheus.
Must not import the controller, handlers or cli; engines alone imports another, kubernetes.
"""
