"""Which conditions does a decision mean, and why?

Each condition with its reason and message, and the one cause that makes others Unknown.
Must not import text, events, log lines or samples.
"""
