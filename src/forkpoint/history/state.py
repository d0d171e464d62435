"""State folding: what the events up to a position add up to.

The state at a position depends on nothing but the events before it, so a fork has exactly the state that was
there, without copying it. An event of an unknown kind might have changed it in a way that only a newer
version can tell; the state is then marked partial rather than guessed.
"""

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from forkpoint.events import Condensation, Content, Gone, JsonText, ManifestChanged, Opaque, SkillActivated, StateChange


class State(Struct, frozen=True, omit_defaults=True):
    """The agent's values by key, its skills, the manifest in force, and where history is kept from."""

    values: tuple[tuple[str, JsonText], ...] = ()  # sorted by key
    skills: tuple[str, ...] = ()  # in the order they were activated
    manifest: str | None = None  # its hash
    kept_from: int = 1  # the first ordinal that a prompt still shows
    summary: str | None = None  # what stands for all before that
    partial: bool = False

    def get(self, key: str) -> JsonText | None:
        """The JSON value of a key, or None if it is not set."""
        return dict(self.values).get(key)

    def then(self, body: Content) -> "State":
        """The state after one more event; the very same object if it changed nothing."""
        after = self._then(body)
        return self if after is self or after == self else after

    def _then(self, body: Content) -> "State":
        match body:
            case StateChange():
                values = dict(self.values) | dict(body.set)
                for key in body.removed:
                    values.pop(key, None)
                return replace(self, values=tuple(sorted(values.items())))
            case SkillActivated() if body.name not in self.skills:
                return replace(self, skills=(*self.skills, body.name))
            case ManifestChanged():
                return replace(self, manifest=body.hash)
            case Condensation():
                return replace(self, kept_from=body.kept_from, summary=body.summary)
            case Gone(kept_from=int(kept_from)):
                return replace(self, kept_from=kept_from, summary=None)
            case Opaque() if not self.partial:
                return replace(self, partial=True)
            case _:
                return self


EMPTY = State()


def fold(bodies: Iterable[Content], state: State = EMPTY) -> State:
    """The state after these events."""
    for body in bodies:
        state = state.then(body)
    return state
