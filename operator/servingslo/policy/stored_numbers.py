"""Numbers of a status, which may have been edited: each in its range, or None."""

from servingslo.estimation.stored_fields import is_number

# No time, count or latency of ours can be larger; it also keeps infinity out.
LARGEST_NUMBER = 1e15


def number_of(value: object) -> float | None:
    """A finite number of 0 or more; None for anything else, booleans included."""
    return float(value) if is_number(value) and 0 <= value < LARGEST_NUMBER else None


def count_of(value: object) -> int | None:
    """A whole number of 0 or more; None for anything else."""
    number = number_of(value)
    return int(number) if number is not None and number == int(number) else None
