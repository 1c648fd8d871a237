"""Laws and shares that the product carries, derived from the step times; and how far they are off.

`python -m tests.silicon.laws` writes `known_engines.json` of the product: for each table the law
that fits its steps, for all together the shares of a roofline, and how far a roofline whose shares
were fitted without a card, or without a model of which only the size is told, is away from their
tables. A minute.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields

import numpy as np
from scipy.optimize import least_squares
from tests.silicon.tables import STEP_TIMES, Table, tables

from servingslo.models.engine.capacity import saturation_rate_per_second
from servingslo.models.engine.law_fit import fit, predicted_seconds
from servingslo.models.engine.service_time import EngineLimits, FloatArray, ServiceLaw
from servingslo.models.known_engines import (
    DATA,
    FAST_LINK,
    MOST_WITHOUT_LINK,
    Model,
    Shares,
    kv_tokens,
    roofline,
    sized_model,
)
from servingslo.models.workload import LengthDistribution, Workload

# Where the search for the shares begins; any sensible start ends at the same ones.
START = Shares(
    weights=0.8,
    experts=0.8,
    cache=0.6,
    compute=0.7,
    hidden=0.8,
    loading=0.3,
    loading_tokens=0.8,
    expert_tokens=2.0,
    layer=3e-5,
    link_layer=1e-5,
    sent=1.0,
)
# A conversation's mean lengths in tokens, and the limits of an engine that serves it: what a
# replica serves by a law is compared there.
# Source: the Azure LLM inference trace 2023, conversation.
CONVERSATION = Workload(
    arrival_rate_per_second=1.0,
    prompt=LengthDistribution.constant(1155.0),
    output=LengthDistribution.constant(211.0),
)
LIMITS = 256, 8192
# Errors of steps beyond this count as their size, not as its square: no row decides alone.
_OUTLIER = 0.2
# Every third step of a table: the shares are the same to a digit.
_THINNED = 3
# More laws of other names of one architecture.
ALIASES = {
    "llama-3-8b": "llama-3.1-8b",
    "deepseek-r1-distill-llama-8b": "llama-3.1-8b",
    "llama-3-70b": "llama-3.1-70b",
    "llama-3.3-70b": "llama-3.1-70b",
    "deepseek-r1-distill-llama-70b": "llama-3.1-70b",
    "qwen3-coder-30b-a3b": "qwen3-30b-a3b",
}
_FIGURES = tuple(field.name for field in fields(ServiceLaw))


def as_row(law: ServiceLaw) -> list[float]:
    """The law's figures, in the order of the data, to four digits."""
    return [float(f"{value:.4g}") for value in asdict(law).values()]


def errors(law: ServiceLaw, table: Table) -> FloatArray:
    """Errors of a law's steps beside the table's, as ratios; below 0 where it is too fast."""
    steps = table.steps
    return predicted_seconds(law, steps) / steps.seconds - 1.0


def by_size(model: Model) -> Model:
    """What is known of a model whose name tells only its size and precision."""
    weight_bytes = model.weights / model.parameters
    return sized_model(model.name, model.parameters, model.active, weight_bytes)


def has_rule(table: Table) -> bool:
    """Whether a roofline is asked for so many of its cards."""
    return table.card.link >= FAST_LINK or table.gpus <= MOST_WITHOUT_LINK


def shares_of(chosen: Sequence[Table]) -> Shares:
    """The shares with the least errors on these tables, each model told by its size alone."""
    steps = [(table, by_size(table.model), _thin(table)) for table in chosen]

    def residuals(logs: FloatArray) -> FloatArray:
        shares = Shares(**dict(zip(asdict(START), np.exp(logs).tolist(), strict=True)))
        parts = [
            np.log(predicted_seconds(roofline(model, table.card, table.gpus, shares), thin))
            - np.log(thin.seconds)
            for table, model, thin in steps
        ]
        return np.concatenate(parts)

    start = np.log(list(asdict(START).values()))
    found = least_squares(residuals, start, loss="soft_l1", f_scale=_OUTLIER)
    return _shares(np.exp(found.x))


def left_out(what: str, chosen: Sequence[Table]) -> dict[str, ServiceLaw]:
    """By table: a roofline whose shares were fitted without its card, or without its model."""
    found = {}
    for name in dict.fromkeys(getattr(table, what).name for table in chosen):
        shares = shares_of([table for table in chosen if getattr(table, what).name != name])
        for table in chosen:
            if getattr(table, what).name == name:
                model = table.model if what == "card" else by_size(table.model)
                found[table.name] = roofline(model, table.card, table.gpus, shares)
    return found


def served_ratio(law: ServiceLaw, table: Table) -> float:
    """What a replica serves by this law, over what it serves by the law fitted to its table."""
    limits = EngineLimits(
        max_num_seqs=LIMITS[0],
        max_num_batched_tokens=LIMITS[1],
        kv_capacity_tokens=kv_tokens(table.model, table.card, table.gpus),
    )
    own = saturation_rate_per_second(CONVERSATION, fit(table.steps).law, limits)
    return saturation_rate_per_second(CONVERSATION, law, limits) / own


def summary(found: Sequence[FloatArray]) -> list[float]:
    """Mean and 95th percentile of the errors' sizes, over all steps."""
    sizes = np.abs(np.concatenate(list(found)))
    return [round(float(sizes.mean()), 3), round(float(np.percentile(sizes, 95)), 3)]


def main() -> None:
    """Write the data file, and print what is in it."""
    document = json.loads(STEP_TIMES.read_text(encoding="utf-8"))
    rows = {}
    for table in tables():
        law = fit(table.steps).law
        rows[table.name] = [*as_row(law), *summary([errors(law, table)])]
    chosen = [table for table in tables() if has_rule(table)]
    kinds = {"dense": False, "experts": True}
    away = {}
    for what in ("card", "model"):
        laws = left_out(what, chosen)
        away[what] = {
            kind: _away(laws, [t for t in chosen if t.model.has_experts is has])
            for kind, has in kinds.items()
        }
        for name in dict.fromkeys(getattr(table, what).name for table in chosen):
            of = _away(laws, [t for t in chosen if getattr(t, what).name == name])
            sys.stdout.write(f"without {name}: {of}\n")
    data = {
        "source": document["source"],
        "cards": _by_name(document["cards"]),
        "models": _by_name(document["models"]),
        "aliases": ALIASES,
        "shares": asdict(shares_of(chosen)),
        "left_out": away,
        "law": _FIGURES,
    }
    head = ",\n".join(f'"{key}":{json.dumps(value)}' for key, value in data.items())
    body = ",\n".join(f'"{key}":{json.dumps(row)}' for key, row in sorted(rows.items()))
    DATA.write_text(f'{{{head},\n"laws":{{\n{body}\n}}}}\n', encoding="utf-8")
    sys.stdout.write(f"{len(rows)} laws; left out: {away}\n")


def _away(laws: Mapping[str, ServiceLaw], of: Sequence[Table]) -> list[float]:
    """Errors of steps, mean and p95, and the mean error of what a replica serves."""
    served = [abs(served_ratio(laws[table.name], table) - 1.0) for table in of]
    found = summary([errors(laws[table.name], table) for table in of])
    return [*found, round(float(np.mean(served)), 3)]


def _shares(values: FloatArray) -> Shares:
    """With four digits that count, as they are stored."""
    digits = (float(f"{value:.4g}") for value in values)
    return Shares(**dict(zip(asdict(START), digits, strict=True)))


def _by_name(stored: Sequence[dict[str, object]]) -> dict[str, dict[str, object]]:
    return {str(one["name"]): {k: v for k, v in one.items() if k != "name"} for one in stored}


def _thin(table: Table):  # type: ignore[no-untyped-def]
    return type(table.steps)(*(column[::_THINNED] for column in table.steps))


if __name__ == "__main__":
    main()
