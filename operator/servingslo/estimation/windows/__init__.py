"""What happened at an engine since its last scrape, and is it plausible?

Counters, scrapes, balance of flow, plausibility, freshness, pods that were not scraped yet.
Must not import any other package of estimation.
"""
