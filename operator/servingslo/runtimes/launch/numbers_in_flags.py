"""Numbers in the forms that engines accept on their command line."""

import re

# No real limit is near this; a longer number is a mistake or an attack on the parser's time.
LARGEST_NUMBER = 10**12
_PLAIN_INTEGER = re.compile(r"^\d{1,15}$")
# Source: human_readable_int of vllm/utils/argparse_utils.py: lower case is decimal and may have a
# fraction, of which the whole part counts; upper case is binary.
_HUMAN_READABLE = re.compile(r"^(\d{1,15}(?:\.\d{1,15})?)([kmgtKMGT])$")
_MULTIPLIER = {
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "K": 2**10,
    "M": 2**20,
    "G": 2**30,
    "T": 2**40,
}


def number_of(text: str, *, human_readable: bool) -> int:
    """The number as vLLM reads it, 0 if it is invalid."""
    if _PLAIN_INTEGER.match(text):
        return int(text)
    human = _HUMAN_READABLE.match(text) if human_readable else None
    if human is None:
        return 0
    number, unit = human.groups()
    if unit.isupper() and "." in number:
        return 0
    return int(float(number) * _MULTIPLIER[unit])
