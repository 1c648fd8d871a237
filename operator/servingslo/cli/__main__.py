"""`python -m servingslo.cli` is the `servingslo` command."""

from servingslo.cli.main import main

main()
