"""Models that run in this process: no key, no network, no server to start.

- `weights`: where a model's file is, and how to get it.
- `llama`: llama.cpp as a package, and whether it can be loaded.
- `engine`: llama.cpp around such a file, shared by all who ask.
- `slots`: which call runs where, so that a prompt which was seen before is not read again.
- `bridge`: between a thread that blocks and a loop that must not.

llama.cpp itself is imported when a model is loaded, and not before.
"""
