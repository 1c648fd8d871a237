"""What would a policy have done on this trace, and at what cost?

Scenarios, policies, runs, scores; rooms: baselines, bounds, fleets, pools, replicas, traces.
Must not import rig or the lab's cli.
"""
