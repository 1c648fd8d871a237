"""A switch of the command line."""

from enum import StrEnum


class Switch(StrEnum):
    """A switch that is given with its value, as charts do."""

    ON = "true"
    OFF = "false"
