"""Requests to the engines' own APIs, if the administrator allows them."""
