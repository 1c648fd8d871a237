"""Laws and shares that the product carries, derived from the step times; and how far they are off.

`python -m tests.silicon.laws` writes `known_engines.json` of the product: for each table the law
that fits its steps, for all together the shares of a roofline, and how far a roofline whose shares
were fitted without a card, or without a model of which only the size is told, is away from their
tables. A minute.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields

import numpy as np
from scipy.optimize import least_squares
from tests.silicon.tables import STEP_TIMES, Table, tables

from servingslo.models.engine.law_fit import fit, predicted_seconds
from servingslo.models.engine.service_time import FloatArray, ServiceLaw
from servingslo.models.known_engines import (
    DATA,
    FAST_LINK,
    MOST_WITHOUT_LINK,
    Model,
    Shares,
    as_row,
    roofline,
    sized_model,
)

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


def left_out(what: str, chosen: Sequence[Table]) -> dict[str, FloatArray]:
    """Errors on each table of a roofline fitted without its card, or without its model."""
    found: dict[str, FloatArray] = {}
    for name in dict.fromkeys(getattr(table, what).name for table in chosen):
        shares = shares_of([table for table in chosen if getattr(table, what).name != name])
        for table in chosen:
            if getattr(table, what).name == name:
                model = table.model if what == "card" else by_size(table.model)
                law = roofline(model, table.card, table.gpus, shares)
                found[table.name] = errors(law, table)
    return found


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
        found = left_out(what, chosen)
        away[what] = {
            kind: summary([found[t.name] for t in chosen if t.model.has_experts is has])
            for kind, has in kinds.items()
        }
        for name in dict.fromkeys(getattr(table, what).name for table in chosen):
            of = [found[t.name] for t in chosen if getattr(t, what).name == name]
            sys.stdout.write(f"without {name}: {summary(of)}\n")
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
