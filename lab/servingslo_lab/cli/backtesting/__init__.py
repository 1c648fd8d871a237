"""Backtests for people: what they are given, what they print, and their page."""
