"""Pure renderers of a decision: conditions, events, log line, metrics, text for people."""
