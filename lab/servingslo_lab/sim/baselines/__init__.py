"""Other autoscalers with their published rules, for comparison with the planner."""
