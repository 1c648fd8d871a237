"""ServingSLO: latency objectives in, replica counts, batch limits and admission bounds out."""

__version__ = "0.1.0"
