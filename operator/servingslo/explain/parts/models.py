"""Several models or adapters in one engine, in words, and for the log."""

from collections.abc import Iterator

from servingslo.estimation.requests.served_models import ServedModels
from servingslo.explain.format import number, percent


def model_lines(models: ServedModels | None) -> Iterator[str]:
    """The lines of `explain`; nothing for one model without adapters."""
    if models is None:
        return
    if models.token_shares:
        shares = ", ".join(f"{one.name} {percent(one.value)}" for one in models.token_shares)
        yield f"Models: {shares} of output tokens"
    if models.slots is not None:
        told = [
            f"{models.adapters_in_flight} in flight",
            f"{models.slots} slots an engine",
            f"{models.adapters_waiting} wait for a slot",
        ]
        if models.deferred_requests:
            told.append(f"{number(models.deferred_requests)} requests deferred")
        yield f"Adapters: {', '.join(told)}"
    if models.adapter_requests:
        held = ", ".join(f"{one.name} {number(one.value)}" for one in models.adapter_requests)
        yield f"  requests in flight: {held}"


def model_pairs(models: ServedModels | None) -> Iterator[tuple[str, str]]:
    """The pair of the log line: adapters that wait for a slot."""
    if models is not None and models.adapters_waiting:
        yield "adapters_waiting", str(models.adapters_waiting)
