"""How is the API server asked, and what do its answers have in common?

Client, fence, cache, discovery; selectors, annotations, timestamps, writers of fields.
Must not import any other package of adapters.kubernetes.
"""
