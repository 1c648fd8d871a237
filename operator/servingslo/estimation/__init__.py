"""What is learned from measurements: pure functions `(state, sample) -> (state, estimate)`.

`estimator.update` asks the rooms in turn: windows, gateway, requests, law, pods, forecast.
Must not import policy, explain or anything that does I/O; the rooms keep the order of the layers.
"""
