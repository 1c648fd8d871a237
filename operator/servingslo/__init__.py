"""ServingSLO: latency objectives in, replica counts out; batch limits and bounds as advice."""

__version__ = "0.1.0"
