"""What happened at an engine since its last scrape, and may it be believed?

Counters, scrapes, balance of flow, plausibility, freshness, pods that were not scraped yet.
Must not import any other room of estimation.
"""
