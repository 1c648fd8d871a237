"""The ServingSLO resource: its models, its generated CRD, its conversion to planner targets."""
