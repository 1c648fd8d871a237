"""Which words start an engine, and which limits and settings do they state?

Programs, flags in every form, configuration files, batch limits, and safe changes of them.
Must not import engines or the catalogue.
"""
