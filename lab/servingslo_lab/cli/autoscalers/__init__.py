"""What do other autoscalers' resources say, and which ServingSLO takes their place?

Models of an HPA and a ScaledObject as they are read, their documents, and the migration.
Must not import adapters or the controller; nothing here reads a file or a cluster.
"""
