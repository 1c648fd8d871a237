"""The leads that forecasts are scored at, and what was learnt there at those between them."""

# Cold starts of the evaluation protocol, 30 and 240 s, and one in between.
SCORED_LEADS_SECONDS = (30.0, 90.0, 240.0)
# The scored lead at which what slopes carry is learnt; up to the one before they carry all of it.
SLOPE_LEAD = 2
# The scored lead at which a rise that was not expected could not be met any more.
SURPRISE_LEAD = 1


def slope_gain_at(lead_seconds: float, furthest: float) -> float:
    """Share that slopes carry at this lead: all of it near, `furthest` at the scored one."""
    return at_lead(lead_seconds, (1.0,) * SLOPE_LEAD + (furthest,))


def at_lead(lead_seconds: float, values: tuple[float, ...]) -> float:
    """Value at a lead, linear between the scored leads and constant outside."""
    leads = SCORED_LEADS_SECONDS
    if lead_seconds <= leads[0]:
        return values[0]
    for i in range(1, len(leads)):
        if lead_seconds <= leads[i]:
            share = (lead_seconds - leads[i - 1]) / (leads[i] - leads[i - 1])
            return values[i - 1] + share * (values[i] - values[i - 1])
    return values[-1]
