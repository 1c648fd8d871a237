"""How much demand will arrive when a replica ordered now is ready?

Rate filters, the season, and the realized errors that correct the prediction.
Must not import any package of estimation but windows.
"""
