"""The step times of `step_times.json`: of which steps, and of those that an engine can run."""

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from servingslo.models.engine.law_fit import Steps
from servingslo.models.engine.service_time import FloatArray
from servingslo.models.known_engines import Card, Model, kv_tokens

STEP_TIMES = Path(__file__).with_name("step_times.json")
# The grid of every row: first a prompt alone, without a sequence that decodes.
SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXTS = (128, 512, 2048, 8192)
PREFILLS = (0, 64, 256, 512, 1024, 2048, 4096)
_GRID = np.array(
    [
        *((0, tokens, 0) for tokens in PREFILLS[1:]),
        *((n, tokens, k) for n in SEQUENCES for k in CONTEXTS for tokens in PREFILLS),
    ],
    dtype=float,
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Table:
    """Step times of one model on so many of one card."""

    card: Card
    model: Model
    gpus: int
    all_seconds: FloatArray

    @property
    def name(self) -> str:
        """'h100/llama-3.1-8b/1'."""
        return f"{self.card.name}/{self.model.name}/{self.gpus}"

    @property
    def steps(self) -> Steps:
        """Those whose tokens the KV cache holds: no engine runs others."""
        n, p, k = _GRID.T
        held = n * k + p <= kv_tokens(self.model, self.card, self.gpus)
        n, p, k, seconds = (column[held] for column in (n, p, k, self.all_seconds))
        ones = np.ones_like(n)
        return Steps(n, p, k, seconds, ones, ones)


@lru_cache(maxsize=1)
def tables() -> tuple[Table, ...]:
    """All of them."""
    document = json.loads(STEP_TIMES.read_text(encoding="utf-8"))
    cards = {one["name"]: Card(**one) for one in document["cards"]}
    models = {one["name"]: Model(**one) for one in document["models"]}
    return tuple(
        Table(
            card=cards[row["card"]],
            model=models[row["model"]],
            gpus=row["gpus"],
            all_seconds=np.array(row["ms"]) / 1000.0,
        )
        for row in document["rows"]
    )
