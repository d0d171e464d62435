"""Steers on disk: messages for an open turn, kept in its row until its journal has them.
Tests: forkpoint.testing.conformance.steers."""

from msgspec.structs import replace

from forkpoint.errors import NoSuchTurn, NotFound, TooLarge
from forkpoint.history.steers import Steer, read_steers, write_steers
from forkpoint.ids import id_from_bytes
from forkpoint.store.tables.database import Database, Row
from forkpoint.store.tables.operations import conversations, idempotency, turns
from forkpoint.store.tables.rows import Scope, outcome_of, turn_of
from forkpoint.store.values import IdempotencyKey, StoredTurn, StoreLimits


def steer(
    db: Database,
    scope: Scope,
    conversation: str,
    new: Steer,
    *,
    turn: str | None,
    key: IdempotencyKey | None,
    limits: StoreLimits,
) -> tuple[StoredTurn, Steer]:
    """Leaves a message for a turn, if the turn is open; or returns the message that the id or the key has left."""
    held = conversations.row_of(db, scope, conversation)
    if made := idempotency.find(db, scope, key, "steer", held["id"]):
        return _left(db, scope, conversation, id_from_bytes(made), key)
    row = _open_turn(db, scope, held, conversation, turn)
    there = read_steers(row["steered"])
    for one in there:
        if one.id == new.id:
            return turn_of(row, scope), one
    if (outcome := outcome_of(row, scope)) in ("committed", "failed", "cancelled"):
        advice = "resume it, or send the message as the next turn" if outcome != "committed" else "send it as the next"
        raise NoSuchTurn(conversation, "steer", f"turn {id_from_bytes(row['id'])} is {outcome}; {advice}")
    if len(there) >= limits.steers:
        raise TooLarge("list of steered messages", len(there) + 1, limits.steers, "messages")
    new = replace(new, time=scope.now, key=None if key is None else key.key)
    steered = write_steers([*there, new])
    if (size := len(steered.encode())) > limits.input:
        raise TooLarge("list of steered messages", size, limits.input)
    db.run("change_steered", {"id": row["id"], "steered": steered})
    idempotency.take(db, scope, key, "steer", held["id"], id_from_bytes(row["id"]))
    return turns.tell(db, scope, id_from_bytes(row["id"]), "steered"), new


def is_left(db: Database, scope: Scope, turn: str | None, id: str) -> bool:
    """Whether a message with this id was left for a turn."""
    found = None if turn is None else turns.find(db, scope, turn)
    return found is not None and any(one.id == id for one in read_steers(found["steered"]))


def _open_turn(db: Database, scope: Scope, held: Row, conversation: str, turn: str | None) -> Row:
    """The turn that is meant. It may be over, if it was named."""
    if turn is None and held["open_turn"] is None:
        raise NoSuchTurn(conversation, "steer", "none is open; send the message as the next turn")
    found = turns.find(db, scope, id_from_bytes(held["open_turn"]) if turn is None else turn)
    if found is None or found["kind"] != "turn":
        raise NotFound("turn", turn or "")
    if found["conversation"] != held["id"]:
        raise NoSuchTurn(conversation, "steer", f"turn {turn} is another conversation's")
    return found


def _left(
    db: Database, scope: Scope, conversation: str, turn: str, key: IdempotencyKey | None
) -> tuple[StoredTurn, Steer]:
    """What an earlier request with this key has left."""
    found = turns.read(db, scope, turn)
    for one in found.steered:
        if key is not None and one.key == key.key:
            return found, one
    raise NoSuchTurn(conversation, "steer", f"what was sent to turn {turn} with this key was removed since")
