"""Side questions, and a look at what is sent to models.

- `questions`: the part of the engine that callers see. `requests`: what a turn sends, or has sent.
- `cache_reports`: why the calls of a turn missed their provider's cache.
"""
