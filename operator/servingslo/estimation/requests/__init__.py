"""How many requests arrive, how long are they, and how long did they take?

Arrivals, retries, lengths, changes of the mix, observed latencies, missed objectives, routing.
Must not import law, pods or forecast.
"""
