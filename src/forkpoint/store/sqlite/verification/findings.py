"""Findings: what one run of `verify` has looked at and found so far.
Tests: tests/store/test_verify.py."""

from forkpoint.store.values import Flaw, Verification, VerifyProgress

_EVERY = 2000


class Findings:
    """Counts what was looked at, and keeps the flaws."""

    def __init__(self, progress: VerifyProgress | None = None) -> None:
        self.conversations = 0
        self.events = 0
        self.erased = 0
        self.records = 0
        self.chains = 0
        self.total = 0  # of events and records, as far as it is known
        self._progress = progress
        self._flaws: list[Flaw] = []

    def found(self, where: str, what: str) -> None:
        self._flaws.append(Flaw(where, what))

    def saw_event(self, *, erased: bool) -> None:
        self.events += 1
        self.erased += erased
        self._tell()

    def saw_record(self) -> None:
        self.records += 1
        self._tell()

    def finish(self) -> Verification:
        """The result. Whoever follows the progress hears that it is at its end."""
        if self._progress is not None:
            done = self.events + self.records
            self._progress(done, done)
        counts = {"records": self.records, "chains": self.chains}
        return Verification(self.conversations, self.events, self.erased, tuple(self._flaws), **counts)

    def _tell(self) -> None:
        done = self.events + self.records
        if self._progress is not None and done % _EVERY == 0:
            self._progress(done, max(done, self.total))
