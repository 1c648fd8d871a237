"""How do simulated engines answer over HTTP, and who sends requests to them?

The engines' host, metrics pages and pods; traffic of a trace, clients, the gateway's page.
Must not import programs, kubernetes or gateways.
"""
