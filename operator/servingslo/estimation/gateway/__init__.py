"""What did the gateway pass on and refuse, and does it see every request?

Its counts by instance, their comparison with the engines' counts, and the ledger of refusals.
Must not import requests, law, pods or forecast.
"""
