"""One attempt at a call, as it is heard: when the first piece came, and what has been spent so far.
Tests: tests/llm/test_streams.py."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import anyio

from forkpoint.events import Usage
from forkpoint.llm.model import Timeouts
from forkpoint.updates import Piece


class Hearing:
    """What a provider tells while it is asked. Usage is kept as soon as it is known: a call may fail later on.

    Whatever a provider hears from its model is a sign of life, and moves the moment at which waiting ends.
    """

    def __init__(
        self,
        heard: Callable[[Piece], None] | None = None,
        *,
        timeouts: Timeouts = Timeouts(),
        until: float = float("inf"),
    ) -> None:
        self.usage = Usage()
        self.first_token: float | None = None
        self.response_id: str | None = None
        self.lively = False
        self.loaded_for = 0.0  # seconds that modules took to load
        self.scope = anyio.CancelScope()
        self._started = time.perf_counter()
        self._timeouts = timeouts
        self._until = until
        self._heard = heard

    def wait_for_first(self) -> None:
        """Waiting begins."""
        self.scope.deadline = min(anyio.current_time() + self._timeouts.first, self._until)

    @contextmanager
    def loading(self) -> Iterator[None]:
        """A module is being loaded, and the model was not asked yet: that time counts against no timeout."""
        began = anyio.current_time()
        self.scope.deadline = float("inf")
        yield
        self.loaded_for = anyio.current_time() - began
        self._until += self.loaded_for
        self.wait_for_first()

    def alive(self) -> None:
        """Something came, though it need not be a piece."""
        self.lively = True
        deadline = self.scope.deadline
        if deadline != float("inf"):
            later = min(anyio.current_time() + self._timeouts.idle, self._until)
            if not 0 <= later - deadline < self._timeouts.idle / 64:  # moving it costs more than the rest of this
                self.scope.deadline = later

    def piece(self, piece: Piece) -> None:
        """The model said something."""
        self.alive()
        if self.first_token is None:
            self.first_token = self.duration
        if self._heard is not None:
            self._heard(piece)

    @property
    def duration(self) -> float:
        """Seconds since the attempt began."""
        return time.perf_counter() - self._started

    @property
    def spoke(self) -> bool:
        """Whether any piece was heard."""
        return self.first_token is not None

    @property
    def waited_for(self) -> str:
        """What did not come in time, in words."""
        if self.scope.deadline >= self._until:
            return f"the whole answer took more than {self._timeouts.total:g} s"
        if self.lively:
            return f"nothing came for {self._timeouts.idle:g} s in the middle of the answer"
        return f"nothing came within {self._timeouts.first:g} s"
