"""When does kopf call the operator?

Startup, lifecycle, validation, waking the controller.
Must not import cli; nowhere else is kopf imported but in cli.
"""
