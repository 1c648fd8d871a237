"""`servingslo crd`: the CustomResourceDefinition."""

import typer

from servingslo.api.crd import render_budget_crd, render_crd


def crd() -> None:
    """Print the CustomResourceDefinition.

    Example: servingslo crd | kubectl apply --server-side -f -
    """
    typer.echo(f"{render_crd()}---\n{render_budget_crd()}")
