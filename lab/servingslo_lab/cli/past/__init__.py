"""What happened before, as Prometheus stored it?

Exported decisions and past readings, asked for once by a command.
Must not import the commands.
"""
