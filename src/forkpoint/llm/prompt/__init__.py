"""A prompt: what stands before its history (`manifest`), its pieces (`blocks`), and how they are made (`rendering`).

`identity` is the cache key that a conversation shows a provider. `inspection` shows what was or would be sent.
"""
