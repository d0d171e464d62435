"""How each wire writes a prompt: what the events of a path look like in a request's body, and the fields around them.

These are the bytes of renderer version 1. **They must not change**: a conversation that was rendered by this version is
cached by providers under exactly these bytes. A better rendering is a new version beside this one.
"""
