"""Which kinds of models there are, how each is spoken to, and what each way of speaking has.
Tests: tests/llm/test_model.py."""

from typing import Literal, TypeAlias

Wire: TypeAlias = Literal["chat", "responses", "messages", "local", "scripted"]
"""How a model is spoken to. ``local`` and ``scripted`` run in this process and read what ``chat`` renders."""

WIRES: dict[str, tuple[Wire, ...]] = {  # which wires each kind of model has, the default first
    "openai": ("responses", "chat"),
    "anthropic": ("messages",),
    "local": ("local",),
    "scripted": ("scripted",),
}

KEYS = {  # where the key of each company is looked for
    "openai": "OPENAI_API_KEY",
    "anthropic": "ANTHROPIC_API_KEY",
}

SAMPLING: dict[str, frozenset[Wire]] = {  # which wires can be told what
    "temperature": frozenset({"chat", "responses", "messages", "local", "scripted"}),
    "top_p": frozenset({"chat", "responses", "messages", "local", "scripted"}),
    "top_k": frozenset({"messages", "local", "scripted"}),
    "seed": frozenset({"chat", "local", "scripted"}),
    "stop": frozenset({"chat", "messages", "local", "scripted"}),
    "presence_penalty": frozenset({"chat", "local", "scripted"}),
    "frequency_penalty": frozenset({"chat", "local", "scripted"}),
}

_NOT_MESSAGES = frozenset[Wire]({"chat", "responses", "local", "scripted"})

OPTIONS: dict[str, frozenset[Wire]] = SAMPLING | {  # and what of a single call
    # Anthropic's API refuses these since its version 2026-10-21, which its SDK asks for. A client of ours sends them
    # to every model alike, so they are left out there; what an LLM says is its owner's choice, and goes as it is.
    "temperature": _NOT_MESSAGES,
    "top_p": _NOT_MESSAGES,
    "top_k": frozenset({"local", "scripted"}),
    "logit_bias": frozenset({"chat", "local", "scripted"}),
    "verbosity": frozenset({"chat", "responses", "scripted"}),
    "service_tier": frozenset({"chat", "responses", "scripted"}),
}

BOUNDS: dict[str, tuple[int, int]] = {
    "temperature": (0, 1000),
    "top_p": (0, 1),
    "top_k": (-1, 2**31 - 1),  # -1: several servers take it for "all of them"
    "seed": (-(2**63), 2**63 - 1),
    "presence_penalty": (-1000, 1000),
    "frequency_penalty": (-1000, 1000),
    "max_tokens": (1, 2**31 - 1),
}
"""The least and the most that a number may be, whoever is asked. What is beyond no server could read."""
