"""What did the last scrape of every engine say?

The reader in its thread, assembly of series by pod, rotation of histograms, pace, clocks.
Must not import past.
"""
