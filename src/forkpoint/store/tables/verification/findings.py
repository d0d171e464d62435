"""Findings: what one run of `verify` has looked at and found so far.
Tests: tests/store/test_verify.py."""

from forkpoint.store.tables.seals.inspection import Inspection
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
        self.seals = 0
        self.remarks: tuple[str, ...] = ()
        self.since: int | None = None
        self.total = 0  # of events and records, as far as it is known
        self._untold = 0  # how many were looked at since progress was told
        self._progress = progress
        self._flaws: list[Flaw] = []

    def found(self, where: str, what: str) -> None:
        self._flaws.append(Flaw(where, what))

    def add(self, sealed: Inspection) -> None:
        """Takes over what was found about seals."""
        self.seals += sealed.seals
        self.remarks += sealed.remarks
        self._flaws += sealed.flaws

    def saw_events(self, count: int) -> None:
        self.events += count
        self._tell(count)

    def saw_record(self) -> None:
        self.records += 1
        self._tell(1)

    def finish(self) -> Verification:
        """The result. Whoever follows the progress hears that it is at its end."""
        if self._progress is not None:
            done = self.events + self.records
            self._progress(done, done)
        return Verification(
            conversations=self.conversations,
            events=self.events,
            erased=self.erased,
            flaws=tuple(self._flaws),
            records=self.records,
            chains=self.chains,
            seals=self.seals,
            remarks=self.remarks,
            since=self.since,
        )

    def _tell(self, more: int) -> None:
        self._untold += more
        if self._progress is not None and self._untold >= _EVERY:
            self._untold = 0
            done = self.events + self.records
            self._progress(done, max(done, self.total))
