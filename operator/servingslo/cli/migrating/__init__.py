"""Which ServingSLO takes the place of an autoscaler that is there?

The command migrate and the text that it writes; the conversion is in api.autoscalers.
Must not import cluster, running or sizing's answers.
"""
