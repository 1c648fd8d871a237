"""Rows of the transforms of one pace."""

# Prefill of others, less 1, and with its seconds as a factor.
EXCESS, SLOPE = 0, 1
# For each of two classes of own prompts, those that fit in a step and the longer ones: own prefill
# with the mass of the class, and that of a prompt which arrives later in the step, less 1.
OWN, BEHIND = 2, 4
# Arrivals that bring the latter; arrivals before the request; these less κ, in pools; and the mean
# prefill of a prompt.
ARRIVING, BEFORE, HOLES, MEAN = 6, 7, 8, 9
# What steps are made of these arrivals: begun, before the request, and for those that fill holes.
BEGUN, MET, FILLED = 10, 11, 12
ROWS = 13

# Who goes along with long prompts, as in `long_prompts.cycles_of_long`.
Joins = tuple[float, float, float, float]
