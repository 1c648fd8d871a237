"""Which share of the requests goes to a fallback, because no further replica can be had?

`knob` decides steps; `steps` verifies each by the fallback's own counts; `capacity` says how much;
`actuator` writes it as weights of `routes`. Must not import another feature.
"""
