"""Which share of requests gets a whole answer? Reported and alerted on, never sized by."""
