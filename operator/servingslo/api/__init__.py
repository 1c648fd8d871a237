"""The ServingSLO resource: its models, its generated CRD, its way into the planner's terms."""
