"""May this process act?

Election of one holder of a Lease, and the Leases of a release and of each namespace.
Must not import any other package of controller.
"""
