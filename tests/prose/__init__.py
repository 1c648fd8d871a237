"""A prose linter for everything people read: proselint, with a word list of our own."""
