"""Other autoscalers, each by its published rule, to hold the planner against."""
