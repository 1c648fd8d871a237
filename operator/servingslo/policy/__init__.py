"""Pure decisions: inputs, sizing, batch limits, admission, guards, and plan()."""
