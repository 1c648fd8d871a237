"""What each runtime calls its metrics and its knobs, as data; an explicit catalogue."""
