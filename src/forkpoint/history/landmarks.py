"""Landmarks: the events of a path that a run has to find, however long the path is.

They are of a few rare kinds. A store keeps their places apart from all other events, so that whoever looks for the
newest manifest, or for what a prompt still shows, reads those events and no others.
Tests: forkpoint.testing.conformance.landmarks, tests/store/test_landmarks.py.
"""

from collections.abc import Collection, Iterable

from msgspec import Struct

from forkpoint.events import Condensation, Content, Event, Gone, Position

LANDMARKS = frozenset(
    {
        "condensation",
        "manifest_changed",
        "settings_changed",
        "sub_agent_finished",
        "sub_agent_spawned",
        "system_message",
    }
)
"""The kinds of events that are landmarks."""


class Landmark(Struct, frozen=True, gc=False):
    """Where such an event stands. It says nothing of the event's content, and stays when that is erased."""

    position: Position
    kind: str
    kept_from: int | None = None  # of a condensation: the first ordinal that prompts still show after it


def kept_from(body: Content) -> int | None:
    """What a landmark says beside its kind."""
    return body.kept_from if isinstance(body, Condensation | Gone) else None


def landmarks_in(events: Iterable[Event], kinds: Collection[str] = LANDMARKS) -> list[Landmark]:
    """The landmarks among events."""
    return [
        Landmark(event.id, event.kind, kept_from(event.body))
        for event in events
        if event.kind in LANDMARKS and event.kind in kinds
    ]
