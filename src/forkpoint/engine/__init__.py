"""The engine: conversations of a store, run by this process. Callers import the names below, and no module.

- `engine`: the `Backend` of a store that this process has open.
- `turns/`: one turn, from its plan to its commit. `team/`: the sub-agents that work beneath it.
- `branches/`: forks, rewinds, keeps, how two branches differ, and what one brings from another.
- `budgets/`: what a call may cost is reserved before it is made. `questions/`: side questions, what is sent, and why it
  missed a cache. `exports/`: conversations as files, and files as conversations.
- `condensation`: shorter prompts for long conversations. `trust`: what a trusted project changes.
- `placement`: where a client's request goes on that sends a name, a fork point or a list of messages.
- `notes`: events that are added without a turn.
- `charges`, `paid_notes`: what models cost outside of turns. `workspaces`: a folder of its own for a fork.
- `conversation_cache`, `views`: what is known of a conversation without reading the store, and how it is shown.

A name is loaded when it is first used: whoever talks to a server does not load the engine.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forkpoint.engine.engine import Engine
    from forkpoint.engine.exports import FORMATS
    from forkpoint.engine.placement import ClientList, ForkPoint, NamedDraft, StartingPoint, paired
    from forkpoint.engine.resources import EngineOptions
    from forkpoint.engine.trust import check_trust, taken_over
    from forkpoint.engine.turns.trace import tracer_in_use
    from forkpoint.engine.views import info_of

__all__ = [
    "FORMATS",
    "ClientList",
    "Engine",
    "EngineOptions",
    "ForkPoint",
    "NamedDraft",
    "StartingPoint",
    "check_trust",
    "info_of",
    "paired",
    "taken_over",
    "tracer_in_use",
]

_HOMES = {
    "FORMATS": "exports",
    "Engine": "engine",
    "EngineOptions": "resources",
    "check_trust": "trust",
    "info_of": "views",
    "taken_over": "trust",
    "tracer_in_use": "turns.trace",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'forkpoint.engine' has no attribute {name!r}")
    return getattr(importlib.import_module(f"forkpoint.engine.{_HOMES.get(name, 'placement')}"), name)
