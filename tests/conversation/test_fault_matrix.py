"""A turn is struck at every await and every write, and every promise holds.

Here a sample of the faults is tried, always in the same order, for as long as a test run has time;
``python -m benchmarks.faults --every`` tries them all. What they are, and what is not among them, says
`tests/conversation/faults/matrix.py`; what must hold after each, `judge.py` beside it.
"""

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import anyio
import pytest
from msgspec.structs import replace
from tests.conversation.faults.judge import WAYS, Broken, Reference, Way, judge, make_reference
from tests.conversation.faults.killing import Children
from tests.conversation.faults.kinds import Fault, Kind
from tests.conversation.faults.long_turn import AT, STEPS, LongTurn
from tests.conversation.faults.matrix import Verdict, open_matrix, sample
from tests.conversation.faults.on_trio import How, cancelled_on_trio
from tests.conversation.faults.points import Point
from tests.conversation.faults.runs import Run, Told, struck
from tests.conversation.faults.starts import ACTS, Act, make_start

from forkpoint import AsyncConversation, TurnFailed
from forkpoint.agent.loop import MAY_HAVE_RUN

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL, and no fork"),
]

ROOT = Path(__file__).parents[2]
SECONDS = 5.0  # for each sample
AT_LEAST = 20  # faults, or it proved nothing

Spoil: TypeAlias = Callable[[Run, Reference], Reference | None]
"""Makes something wrong that was right."""


async def tried(folder: Path, acts: tuple[Act, ...], kinds: tuple[Kind, ...], *, http: bool = False) -> list[Verdict]:
    """A sample, as large as there is time for."""
    verdicts: list[Verdict] = []
    async with open_matrix(folder, http=http) as matrix:
        faults = [fault for fault in await matrix.find(acts) if fault.kind in kinds]
        until = time.monotonic() + SECONDS
        for fault in sample(faults):
            if time.monotonic() > until and len(verdicts) >= AT_LEAST:
                break
            verdicts.append(await matrix.try_one(fault))
    return verdicts


def assert_all_is_well(verdicts: list[Verdict]) -> None:
    problems = [str(verdict) for verdict in verdicts if verdict.problem is not None]
    assert not problems, f"{len(problems)} of {len(verdicts)} faults were not handled:\n" + "\n".join(problems[:5])
    assert sum(verdict.struck for verdict in verdicts) >= AT_LEAST, "hardly any fault struck, so this proved nothing"


@pytest.mark.parametrize("kind", ["exception", "cancel", "kill"])
async def test_a_fault_at_any_await_or_write_leaves_the_turn_whole_or_not_at_all(tmp_path: Path, kind: Kind) -> None:
    assert_all_is_well(await tried(tmp_path, ACTS, (kind,)))


async def test_over_http_the_very_bytes_of_the_next_request_are_those_of_a_run_without_the_fault(
    tmp_path: Path,
) -> None:
    assert_all_is_well(await tried(tmp_path, ("run",), ("exception", "cancel", "kill"), http=True))


async def test_a_fault_at_any_statement_loses_no_message_that_was_accepted_and_gives_the_model_none_twice(
    tmp_path: Path,
) -> None:
    async with open_matrix(tmp_path) as matrix:
        faults = sample([fault for fault in await matrix.find(["steer"]) if not fault.company])
        statements = [point for point in matrix.points["steer", False] if point.kind == "statement"]
        # What stands before the transaction of the message is as in a turn without one.
        sent = next(place for place, point in enumerate(statements) if point.name.startswith("UPDATE turn SET steered"))
        begins = max(place for place in range(sent) if statements[place].name.startswith("BEGIN"))
        one_each = [next(fault for fault in faults if fault.point == point) for point in statements[begins:]]
        verdicts = [await matrix.try_one(fault) for fault in one_each]
    assert_all_is_well(verdicts)
    heard = {verdict.heard[-1] for verdict in verdicts if verdict.heard}
    assert heard >= {"sent", "accepted", "refused"}, f"this proved little: {heard}"
    assert {verdict.stood for verdict in verdicts} >= {"committed", "failed", "interrupted"}


async def test_the_points_of_a_turn_are_found_wherever_it_waits_or_writes(tmp_path: Path) -> None:
    points = await points_of(tmp_path)
    assert points == sorted(set(points), key=points.index), "two points have one name"
    names = " ".join(point.name for point in points if point.kind == "await")
    for waits in ("begin", "ScriptedProvider.ask", "journal", "weigh", "run_sync", "TaskGroup", "post", "commit"):
        assert waits in names, f"no point was found where the turn waits for {waits}"
    statements = Counter(point.name.split()[0] for point in points if point.kind == "statement")
    # It begins, and commits; between that it journals two answers of the model and three results.
    assert statements["BEGIN"] == statements["COMMIT"] == 7


@pytest.mark.parametrize("anyio_backend", ["trio"])
@pytest.mark.parametrize("how", ["scope", "cancel()"])
async def test_on_trio_a_turn_that_is_cancelled_at_any_step_is_whole_or_not_there_at_all(
    tmp_path: Path, how: How
) -> None:
    start = await make_start(tmp_path / "start", None)
    reference = await make_reference(start, tmp_path / "reference", None)
    stood: list[str] = []

    async def cancelled(at: int | None) -> int:
        folder = tmp_path / f"run {at}"
        start.copy(folder)
        run = Run(start, folder, None, None)
        steps = await cancelled_on_trio(run, at, how)
        stood.append(await judge(run, reference, WAYS[(at or 0) % len(WAYS)], elsewhere=True))
        run.log.close()
        return steps

    for at in range(1, await cancelled(None)):
        await cancelled(at)
    assert stood[0] == "committed"
    assert stood.count("cancelled") >= AT_LEAST, f"hardly any step was struck, so this proved nothing: {stood}"


# Some of them, each by its name.


async def after(
    folder: Path, fault: Fault | None, way: Way, *, elsewhere: bool = False, spoil: Spoil | None = None
) -> tuple[Told, str]:
    """What the caller was told, and how the turn stood; then somebody goes on, and the judge looks at it all."""
    start = await make_start(folder / "start", None)
    reference = await make_reference(start, folder / "reference", None)
    start.copy(folder / "run")
    run = Run(start, folder / "run", fault, None)
    try:
        if fault is not None and fault.kind == "kill":
            with Children() as children:
                children.run(run, folder / "run", company=False)
            return run.told, await judge(run, reference, way, elsewhere=True)
        async with struck(run, company=False):
            told = run.told
            if spoil is not None:
                reference = spoil(run, reference) or reference
            return told, await judge(run, reference, way, elsewhere=elsewhere)
    finally:
        run.log.close()


def at_the_commit(how: str, kind: Kind = "exception") -> Fault:
    """The turn begins; then two answers and three results are journalled; so its commit is the seventh COMMIT."""
    return Fault("run", kind, how, Point("statement", "COMMIT", 7), company=False)


@pytest.mark.parametrize(("how", "stood"), [("landed", "committed"), ("not landed", "failed")])
async def test_a_commit_of_which_the_disk_does_not_tell_is_unknown_until_it_is_settled(
    tmp_path: Path, how: str, stood: str
) -> None:
    fault = at_the_commit(f"fsync failed from here on, {how}")
    assert await after(tmp_path, fault, "retry") == ("unknown", stood)


@pytest.mark.parametrize("way", WAYS)
async def test_a_turn_whose_end_the_disk_did_not_take_is_ended_by_whatever_comes_next(tmp_path: Path, way: Way) -> None:
    fault = at_the_commit("disk full from here on")
    assert await after(tmp_path, fault, way) == ("failed", "running")


@pytest.mark.parametrize("way", WAYS)
async def test_a_turn_whose_process_was_killed_is_interrupted_and_another_process_goes_on(
    tmp_path: Path, way: Way
) -> None:
    assert await after(tmp_path, at_the_commit("before", "kill"), way) == ("killed", "interrupted")


async def test_a_turn_whose_process_was_killed_after_the_commit_is_committed(tmp_path: Path) -> None:
    assert await after(tmp_path, at_the_commit("after", "kill"), "retry") == ("killed", "committed")


async def test_a_turn_that_is_cancelled_again_while_it_is_being_ended_is_ended_all_the_same(tmp_path: Path) -> None:
    (point,) = [point for point in await points_of(tmp_path / "points") if "post > " in point.name]
    fault = Fault("run", "cancel", "task, twice", point, company=False)
    assert await after(tmp_path, fault, "resume") == ("cancelled", "cancelled")


async def points_of(folder: Path) -> list[Point]:
    async with open_matrix(folder) as matrix:
        await matrix.find(["run"])
        return matrix.points["run", False]


# The judge sees what is wrong: what it would let pass, the matrix would not find.


def say_that_it_returned(run: Run, reference: Reference) -> None:
    run.told = "returned"


def say_that_it_failed(run: Run, reference: Reference) -> None:
    run.told = "failed"


def run_a_tool_twice(run: Run, reference: Reference) -> None:
    run.log.write("starts", "call_post")
    run.log.write("ends", "call_post")


def pay_for_an_answer_that_is_not_counted(run: Run, reference: Reference) -> None:
    run.log.write("answered")


def expect_another_request(run: Run, reference: Reference) -> Reference:
    return replace(reference, next=reference.next.replace(b"tomorrow", b"tonight"))


def expect_a_further_request(run: Run, reference: Reference) -> Reference:
    return replace(reference, turn=(*reference.turn, reference.turn[-1]))


def accept_a_message_that_is_not_there(run: Run, reference: Reference) -> None:
    run.log.write("steered", "accepted")


@pytest.mark.parametrize(
    ("fault", "spoil", "says"),
    [
        (at_the_commit("i/o error"), say_that_it_returned, "it returned, and the turn is failed"),
        (None, say_that_it_failed, "the caller heard that it failed, and the turn is committed"),
        (None, run_a_tool_twice, "call_post was run 2 times"),
        (None, pay_for_an_answer_that_is_not_counted, "4 answers were paid for, and 3 are counted"),
        (None, accept_a_message_that_is_not_there, "the message was accepted, and is lost"),
        (None, expect_another_request, "the next turn sent another request"),
        (at_the_commit("i/o error"), expect_a_further_request, "the turn that goes on asked 1 times, and not 2"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_the_judge_sees_what_is_not_as_it_should_be(
    tmp_path: Path, fault: Fault | None, spoil: Spoil, says: str
) -> None:
    with pytest.raises(Broken, match=says):
        await after(tmp_path, fault, "resume", spoil=spoil)


# A long turn.


async def test_a_long_turn_that_fails_at_its_31st_step_asks_from_there_on_what_it_would_have_asked(
    tmp_path: Path,
) -> None:
    for name in ("whole", "failed"):
        (tmp_path / name).mkdir()
    whole, turn = LongTurn(tmp_path / "whole"), LongTurn(tmp_path / "failed")
    async with AsyncConversation(whole.agent, conversation_id="long", store=tmp_path / "whole.db") as conversation:
        await conversation.run("Do it all.")
    turn.overloaded = True
    async with AsyncConversation(turn.agent, conversation_id="long", store=tmp_path / "failed.db") as conversation:
        with pytest.raises(TurnFailed) as failed:
            await conversation.run("Do it all.")
        assert failed.value.turn is not None
        assert len(failed.value.turn.calls) == AT - 1
        turn.overloaded = False
        resumed = await conversation.resume()
        assert resumed.text == "All is done."
        assert resumed.usage.calls == STEPS + 2, "the call that failed is paid for as well"
    assert turn.ran == list(range(1, STEPS + 1))
    asked = [without_key(body) for body in turn.asked]
    assert asked.pop(AT) == asked[AT - 1], "what was asked when it went on is what was asked when it failed"
    assert asked == [without_key(body) for body in whole.asked]


async def test_a_long_turn_that_is_cancelled_in_its_31st_tool_goes_on_and_runs_no_tool_twice(tmp_path: Path) -> None:
    turn = LongTurn(tmp_path)
    async with AsyncConversation(turn.agent, conversation_id="long", store=tmp_path / "long.db") as conversation:
        with anyio.CancelScope() as scope:
            turn.strikes = scope.cancel
            await conversation.run("Do it all.")
        turn.strikes = None
        await goes_on(turn, conversation)


async def test_a_long_turn_whose_process_is_killed_in_its_31st_tool_goes_on_and_runs_no_tool_twice(
    tmp_path: Path,
) -> None:
    file = tmp_path / "long.db"
    command = [sys.executable, "-m", "tests.conversation.faults.long_turn", str(file), str(tmp_path)]
    program = await anyio.run_process(command, cwd=ROOT, check=False, stdout=subprocess.DEVNULL, stderr=None)
    assert program.returncode == -9
    turn = LongTurn(tmp_path)
    async with await AsyncConversation.open("long", agent=turn.agent, store=file) as conversation:
        assert await conversation.status() == "interrupted"
        await goes_on(turn, conversation)


async def goes_on(turn: LongTurn, conversation: AsyncConversation) -> None:
    """Resumes a turn whose 31st tool was started, and checks that all others ran once, and this one not again."""
    assert turn.ran == list(range(1, AT + 1))
    resumed = await conversation.resume()
    assert resumed.text == "All is done."
    assert turn.ran == list(range(1, STEPS + 1))
    (unknown,) = [call for call in resumed.calls if call.status != "done"]
    assert (unknown.id, unknown.status, unknown.result) == (f"call_{AT}", "unknown", MAY_HAVE_RUN)


def without_key(body: bytes) -> bytes:
    """A request without the cache key, which is another conversation's."""
    before, _, after = body.partition(b'"prompt_cache_key":"')
    return before + after.partition(b'"')[2]
