"""Learn from measurements: pure functions `(state, sample) -> (state, estimate)`.

`estimator.update` calls the packages in order: windows, gateway, requests, law, pods, forecast.
Must not import policy, explain or anything that does I/O; packages keep the order of the layers.
"""
