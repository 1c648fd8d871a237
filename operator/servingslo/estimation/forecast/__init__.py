"""How much will arrive when a replica ordered now is ready?

Rate filters, the season, surges, and the realized errors that correct the prediction.
Must not import any room of estimation but windows.
"""
