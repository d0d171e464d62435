"""The engine of an open store: its file, its writer, its readers, and the turns that this process holds in it."""

from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

from forkpoint.clock import Clock
from forkpoint.events import Usage
from forkpoint.store.records import StoreLimits
from forkpoint.store.sqlite.connection import SQL, Database
from forkpoint.store.sqlite.holders import Holder
from forkpoint.store.sqlite.pulse import Pulse
from forkpoint.store.sqlite.reader import Readers
from forkpoint.store.sqlite.writer import WriteJob, Writer

SECOND = 1_000_000
HOUR = 3600 * SECOND


class SqliteSettings(Struct, frozen=True, kw_only=True):
    """How a SQLite store behaves. Times are in microseconds."""

    limits: StoreLimits = StoreLimits()
    readers: int = 4  # reads at once
    heartbeat: int = 10 * SECOND
    expiry: int = 60 * SECOND  # after which a silent process may lose its turns
    keep_drafts: int = 24 * HOUR
    keep_keys: int = 7 * 24 * HOUR


DEFAULTS = SqliteSettings()


@dataclass
class OpenFile:
    """What the views of one open store share, whatever tenant they are seen from."""

    path: str
    settings: SqliteSettings
    clock: Clock
    holder: Holder
    writer: Writer = field(init=False)
    readers: Readers = field(init=False)
    pulse: Pulse = field(init=False)
    beaten: int | None = None  # when this process last said, in a committed transaction, that it is alive
    running: set[bytes] = field(default_factory=set)  # tokens of the turns that this process holds
    # Turns whose outcome is unknown, by tenant and id: their token, and what was spent last.
    unsettled: dict[tuple[str, str], tuple[bytes, Usage]] = field(default_factory=dict)
    closed: bool = False

    def beat(self) -> WriteJob[Any] | None:
        """The heartbeat, while there is something to hold."""
        if not self.running:
            return None
        return WriteJob("heartbeat", "", self.say_alive, landed=lambda db: True, durable=False)

    def let_go(self) -> None:
        """Closes everything, in an order in which nothing is used after it is gone."""
        self.readers.close()
        self.pulse.close()
        self.writer.close()
        self.holder.leave()

    def is_alone(self) -> bool:
        """Whether at most one turn is open here, so that no other could share its transaction."""
        return len(self.running) <= 1

    def say_alive(self, db: Database) -> int:
        now = self.clock()
        db.execute(SQL["beat"], {"id": self.holder.id, "now": now})
        return now

    def is_silent(self) -> bool:
        """Whether the last heartbeat is old: nothing was open here, so there was none."""
        return self.beaten is None or self.clock() - self.beaten > self.settings.heartbeat
