"""Commands that the lab adds to `servingslo`, found by the entry points `servingslo.commands`."""
