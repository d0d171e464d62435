"""What can happen at a point: exceptions, cancellations and kills."""

from typing import Literal, TypeAlias, assert_never

from msgspec import Struct
from tests.conversation.faults.disk import FLAWS
from tests.conversation.faults.points import Point
from tests.conversation.faults.starts import Act

Kind: TypeAlias = Literal["exception", "cancel", "kill"]


class Fault(Struct, frozen=True):
    """What happens at which point of which act."""

    act: Act
    kind: Kind
    how: str
    point: Point
    company: bool  # another turn is open in the same store, so that writes go through the writer's queue

    def __str__(self) -> str:
        return f"{self.act}: {self.kind} ({self.how}) at {self.point}{', in company' if self.company else ''}"

    @property
    def lasting(self) -> bool:
        """Whether the store stays broken until the turn is over."""
        return "from here on" in self.how

    @property
    def closes(self) -> bool:
        """Whether what the turn was run with is closed afterwards."""
        return self.how in ("close()", "store closed")


def faults_at(act: Act, point: Point, *, company: bool) -> list[Fault]:
    """All that can happen at a point."""
    hows: list[tuple[Kind, str]]
    match point.kind:
        case "await":
            hows = [("exception", how) for how in _raised_at(point)]
            if act != "sync":
                hows += [("exception", "unforeseen, then cancelled")] if point.raises else []
                hows += [("exception", "store closed")]
            hows += [("cancel", how) for how in _cancelled_in(act)]
        case "statement":
            commits = point.name == "COMMIT"
            hows = [("exception", how) for how, flaw in FLAWS.items() if commits or not flaw.commits]
            hows += [("cancel", "Ctrl-C")] if act == "sync" else [("cancel", "task"), ("cancel", "cancel()")]
            hows += [("kill", "after")] if commits else []
        case "file":
            hows = [("exception", "os error")] if point.raises else []
        case _ as never:
            assert_never(never)
    return [Fault(act, kind, how, point, company) for kind, how in [*hows, ("kill", "before")]]


def _raised_at(point: Point) -> list[str]:
    """What may come out of what is awaited. Where a task only waits to be woken, nothing can."""
    if not point.raises:
        return []
    match point.layer:
        case "store":
            return ["refused", "refused from here on", "unforeseen", "unforeseen from here on"]
        case "model":
            return ["connection lost", "unforeseen"]
        case "tool" | "turn":
            return ["unforeseen"]
        case _ as never:
            assert_never(never)


def _cancelled_in(act: Act) -> list[str]:
    if act == "sync":
        return ["Ctrl-C", "time runs out"]
    return ["task", "task, twice", "scope", "cancel()", "close()", "time runs out"]
