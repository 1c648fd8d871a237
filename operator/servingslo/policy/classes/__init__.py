"""What may wait, and what is refused first, if not all requests can be served?

Which classes order replicas, and the bound of each; counts come from `policy.replicas`.
Must not import an adapter or the controller; reads no clock.
"""
