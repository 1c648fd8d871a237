"""How many engines leave each adapter (LoRA) a slot: a batch holds only so many different ones.

Requests of adapter i that are in flight in the whole fleet, L_i on average, are spread evenly over
N engines: an engine holds it with probability p_i = 1 − e^(−L_i/N) (the number in an insensitive
queue is Poisson). The number of different adapters is a sum of such indicators. A request waits for
a slot if its own adapter holds none there and the others hold all.
Source: vLLM, vllm/config/lora.py (`max_loras`) and vllm/v1/core/sched/scheduler.py: a request whose
adapter would exceed it is passed over until another one's last request ends.
"""

from collections.abc import Sequence

import numpy as np


def waiting_ratio(requests: Sequence[float], slots: int, engines: int) -> float:
    """Return the share of the adapters' requests that find no slot on arrival, 0 to 1.

    requests: L_i of each adapter. slots: of one engine, at least 1. engines: N.
    """
    loads = np.asarray(requests, dtype=float)
    total = float(loads.sum())
    if len(loads) <= slots or total <= 0.0:
        return 0.0
    held = -np.expm1(-loads / engines)
    # Row i: probability that 0, 1, … slots − 1 of the other adapters are held.
    below = np.zeros((len(loads), slots))
    below[:, 0] = 1.0
    for place, share in enumerate(held):
        grown = below * (1.0 - share)
        grown[:, 1:] += below[:, :-1] * share
        grown[place] = below[place]
        below = grown
    full = 1.0 - below.sum(axis=1)
    return float(np.clip((loads * (1.0 - held) * full).sum() / total, 0.0, 1.0))


def least_engines(requests: Sequence[float], slots: int, ratio: float, most: int) -> int | None:
    """Return the least number of engines at which at most this share waits for a slot.

    None if that is more than `most`, which is at least 1.
    """
    if waiting_ratio(requests, slots, most) > ratio:
        return None
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        if waiting_ratio(requests, slots, middle) > ratio:
            low = middle
        else:
            high = middle
    return high
