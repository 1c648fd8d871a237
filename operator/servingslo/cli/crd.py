"""`servingslo crd`: the CustomResourceDefinition."""

import typer

from servingslo.api.crd import render_crd


def crd() -> None:
    """Print the CustomResourceDefinition.

    Example: servingslo crd | kubectl apply --server-side -f -
    """
    typer.echo(render_crd())
