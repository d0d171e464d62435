"""State: what a caller may set in an agent's state from outside. Tests: tests/conversation/test_substitute.py."""

from collections.abc import Mapping

from forkpoint.agent.context import AgentState
from forkpoint.errors import BadArgument, NotWhole
from forkpoint.events import JsonText


def as_state(call: str, values: Mapping[str, object]) -> dict[str, JsonText]:
    """Values of an agent's state as JSON, by key. Raises `BadArgument` for a value that has no JSON form."""
    if not isinstance(values, Mapping):
        raise BadArgument(call, "state", f"it is of the class {type(values).__name__}, and must be a mapping")
    state = AgentState()
    try:
        for key, value in values.items():
            state[key] = value
    except (NotWhole, TypeError) as error:
        why = error.why if isinstance(error, NotWhole) else str(error)
        raise BadArgument(call, "state", why) from None
    return dict(state.change.set) if state.change is not None else {}
