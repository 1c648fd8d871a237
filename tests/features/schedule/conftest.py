"""The command line, as the unit tests call it."""

from tests.unit.conftest import cli

__all__ = ["cli"]
