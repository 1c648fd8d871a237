"""How long does a token take, and a whole request?

The gaps between tokens, the prompts of others in them, and the laws over output lengths.
Must not import waits or fleet.
"""
