"""Asking models: what to ask, how it is written, who answers, and what it cost.

The way of a call, and where to read about each step:

- `model`: `LLM`, which model and how to ask it. Frozen data that holds nothing of a conversation.
- `manifest`: what a prompt has before its history, and its hash.
- `rendering`, `blocks`, `wires`: from a manifest and a path to the exact bytes of a request.
- `identity`: the cache key that a conversation shows a provider, and why.
- `calling`: `Models.call`, from a rendering to an outcome; retries, timeouts, usage.
- `providers`, `streams`, `failures`: each wire's way of being asked, of answering and of failing.
- `inspecting`: what was or would be sent, where its cached part ends, and why.

Nothing here knows of stores. The SDKs, the price list and llama.cpp are loaded when they are first used.
"""
