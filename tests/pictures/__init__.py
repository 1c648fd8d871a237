"""Pictures of the pages, drawn from text and recordings: `make pictures`."""
