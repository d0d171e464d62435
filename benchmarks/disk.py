"""How many bytes a hundred forks take."""

from pathlib import Path

from benchmarks import ours, peers
from benchmarks.arena import IT
from benchmarks.bench import Bench
from benchmarks.peers import PeerKind
from benchmarks.results import Budget, Section, Table
from benchmarks.samples import TURN, Message, messages
from benchmarks.tables import factor, figure
from forkpoint.events import encode_body
from forkpoint.ids import new_id

OWN = 10  # events that each fork adds


async def measure(bench: Bench) -> Section:
    plan = bench.plan
    unique = sum(len(encode_body(each.body).encode()) for each in ours.events(_all(plan.shared, plan.forks)))
    bench.progress.say(f"  {ours.NAME}: {plan.forks} forks")
    taken = {ours.NAME: await _ours(bench)}
    for kind in peers.storing():
        bench.progress.say(f"  {kind.name}: {plan.forks} forks")
        taken[kind.name] = await _peer(bench, kind)
    rows = tuple((name, f"{size / 1e6:.1f} MB", factor(size / unique)) for name, size in taken.items())
    table = Table("Disk", ("", "on disk", "of the unique payload"), rows)
    text = f"""\
A conversation of {plan.shared:,} events in turns of four, then {plan.forks} forks of it at its head, each with one
turn of {OWN} events of its own; everything closed, and all files counted. The payloads of these
{plan.shared + plan.forks * OWN:,} events, each counted once, are {figure(unique / 1e6)} MB. LangGraph's conversation
was written in two checkpoints; one for every turn, as in use, would add to it."""
    budget = Budget(
        f"{plan.forks} forks of {plan.shared:,} events, {OWN} own events each: bytes against unique payload bytes",
        1.6,
        taken[ours.NAME] / unique,
    )
    return Section("Bytes on disk", text, (table,), (budget,))


def _own(fork: int, shared: int) -> list[Message]:
    return messages(shared + fork * OWN, OWN, turn=OWN)


def _all(shared: int, forks: int) -> list[Message]:
    return messages(0, shared) + [each for fork in range(forks) for each in _own(fork, shared)]


async def _ours(bench: Bench) -> int:
    path = bench.new_file()
    plan = bench.plan
    async with await ours.opened(path) as store:
        conversation = await ours.new_conversation(store)
        for first in range(0, plan.shared, TURN):
            await ours.turn(store, conversation, new_id(), ours.events(messages(first, TURN)))
        for number in range(plan.forks):
            fork = (await ours.fork(store, conversation, new_id())).id
            await ours.turn(store, fork, new_id(), ours.events(_own(number, plan.shared)))
    return _size(bench, path)


async def _peer(bench: Bench, kind: PeerKind) -> int:
    path = bench.new_file()
    plan = bench.plan
    peer = kind(path)
    await peer.fill(IT, messages(0, plan.shared))
    for number in range(plan.forks):
        bench.progress.part("fork", number, plan.forks)
        await peer.select(IT)
        fork = await peer.fork(IT)
        await peer.append(fork, peer.native(_own(number, plan.shared)))
    assert len(await peer.load(fork)) >= plan.shared
    peer.close()
    return _size(bench, path)


def _size(bench: Bench, path: Path) -> int:
    size = sum(file.stat().st_size for file in path.parent.rglob("*") if file.is_file())
    bench.drop(path)
    return size
