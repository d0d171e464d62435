"""Hooks: what runs at certain moments of a turn. `hook` is the data, `run` runs one, `point` asks all of them."""
