"""The models and adapters (LoRA) of one engine, from the labels of its series."""

import math
from collections.abc import Mapping
from typing import Any

from servingslo.runtimes.profile import AdapterLabels

# A tenant's page must not fill the memory: adapters and models of one engine.
MOST_NAMES = 128


def adapters_of(names: AdapterLabels, labels: Mapping[str, str]) -> dict[str, Any]:
    """The adapters in flight, running or waiting, and the slots; empty without a number of slots.

    An engine names each adapter once, or once for each of its requests.
    """
    slots = labels.get(names.slots, "")
    if not (slots.isascii() and slots.isdecimal() and int(slots)):
        return {}
    told = ",".join(labels.get(label, "") for label in (names.running, names.waiting))
    found = {name.strip() for name in told.split(",")} - {""}
    return {"adapters": tuple(sorted(found)[:MOST_NAMES]), "adapter_slots": int(slots)}


def largest(counts: Mapping[str, float]) -> dict[str, float]:
    """The largest counts by name, of a bounded number of names."""
    finite = [one for one in counts.items() if math.isfinite(one[1]) and one[1] >= 0.0]
    return dict(sorted(finite, key=lambda one: (-one[1], one[0]))[:MOST_NAMES])
