"""Anchors that a server hands to its witnesses: a file and a command, through its life and its end."""

import os
import signal
import stat
from pathlib import Path

import anyio
import pytest
from tests.server.support.doing import start
from tests.server.support.turning import PATIENCE, using

from forkpoint.conversation import Anchor, Conversations, read_anchors
from forkpoint.server.http.metrics import Metrics
from forkpoint.server.settings import ServerSettings
from forkpoint.server.witnesses import Witnesses
from forkpoint.store import Store, open_store
from forkpoint.testing.conformance.base import create, run


def anchors_in(file: Path) -> tuple[Anchor, ...]:
    return read_anchors(file.read_text()) if file.exists() else ()


def counted(metrics: Metrics, name: str) -> float:
    line = next(line for line in metrics.render()[0].decode().splitlines() if line.startswith(name))
    return float(line.split()[-1])


def test_witnesses_get_an_anchor_when_a_server_ends_and_after_a_kill_when_it_starts_again(tmp_path: Path) -> None:
    log, other = tmp_path / "anchors.jsonl", tmp_path / "elsewhere.jsonl"
    options = ("--anchor-log", str(log), "--anchor-command", f"cat >> {other}")
    with start(tmp_path, *options) as server, using(server.url) as api:
        id = api.create()
        assert api.run(id, "Hello.").status_code == 200
        assert "forkpoint_last_anchor_time_seconds" in api.http.get("/metrics").text
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE) == 0, server.log.read_text()
    first = anchors_in(log)
    assert first
    assert first[-1] in anchors_in(other)
    assert stat.S_IMODE(log.stat().st_mode) == 0o600

    with start(tmp_path, *options) as server, using(server.url) as api:
        assert api.run(id, "And again.").status_code == 200
        server.kill()
    assert anchors_in(log)[: len(first)] == first

    with start(tmp_path, *options) as server:
        assert server.terminate() == 0
    last = anchors_in(log)
    assert last[: len(first)] == first
    assert last[-1].count > first[-1].count
    assert len(set(last)) == len(last), "a witness gets no anchor twice"
    assert set(last) <= set(anchors_in(other))
    with Conversations(f"sqlite:///{tmp_path / 'server.db'}") as conversations:
        found = conversations.verify(anchors=last)
        assert found.ok, found.flaws
        assert conversations.anchor(all_tenants=True) == last[-1]


async def opened(folder: Path) -> Store:
    store = await open_store(f"sqlite:///{folder / 'store.db'}")
    await run(store, (await create(store)).id, "one")
    return store


@pytest.mark.anyio
async def test_at_each_interval_there_is_an_anchor_if_anything_is_new(tmp_path: Path) -> None:
    pipe, log = tmp_path / "pipe", tmp_path / "log"
    os.mkfifo(pipe)
    settings = ServerSettings(anchor_log=str(log), anchor_command=f"cat > {pipe}", anchor_interval=0.01)
    metrics = Metrics()

    async def heard() -> Anchor:
        (anchor,) = read_anchors(await anyio.Path(pipe).read_text())
        return anchor

    async with await opened(tmp_path) as store, anyio.create_task_group() as tasks:
        tasks.start_soon(Witnesses(settings, store, metrics).watch)
        with anyio.fail_after(PATIENCE):
            first = await heard()
            await run(store, (await create(store)).id, "two")
            second = await heard()
            assert (first.number, second.number, second.previous) == (1, 2, first.digest)
        tasks.cancel_scope.cancel()
    assert anchors_in(log) == (first, second)


@pytest.mark.anyio
async def test_a_witness_that_fails_is_counted_and_gets_the_next_anchor(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, is_up = tmp_path / "not there yet", tmp_path / "up"
    command = f"cat > {tmp_path / 'told'}; test -e {is_up} || {{ echo The witness is away. >&2; exit 3; }}"
    settings = ServerSettings(anchor_log=str(folder / "log"), anchor_command=command)
    metrics = Metrics()
    async with await opened(tmp_path) as store:
        witnesses = Witnesses(settings, store, metrics)
        await witnesses.tell()
        assert counted(metrics, 'forkpoint_anchor_failures_total{witness="log"}') == 1
        assert counted(metrics, 'forkpoint_anchor_failures_total{witness="command"}') == 1
        assert counted(metrics, "forkpoint_last_anchor_time_seconds") == 0
        assert "exit status is 3; it said: The witness is away." in caplog.text
        folder.mkdir()
        is_up.touch()
        await witnesses.tell()
        await witnesses.tell()
        assert counted(metrics, "forkpoint_last_anchor_time_seconds") > 0
        assert len(anchors_in(folder / "log")) == 1
        assert anchors_in(tmp_path / "told") == anchors_in(folder / "log")


@pytest.mark.anyio
async def test_a_command_that_hangs_is_ended(tmp_path: Path) -> None:
    metrics = Metrics()
    async with await opened(tmp_path) as store:
        with anyio.fail_after(PATIENCE):
            await Witnesses(ServerSettings(anchor_command="sleep 600"), store, metrics).tell(patience=0.1)
    assert counted(metrics, 'forkpoint_anchor_failures_total{witness="command"}') == 1


@pytest.mark.anyio
async def test_a_store_that_fails_is_counted(tmp_path: Path) -> None:
    metrics, store = Metrics(), await opened(tmp_path)
    await store.close()
    await Witnesses(ServerSettings(anchor_log=str(tmp_path / "log")), store, metrics).tell()
    assert counted(metrics, 'forkpoint_anchor_failures_total{witness="log"}') == 1


@pytest.mark.anyio
async def test_a_store_without_records_and_a_server_without_witnesses_say_nothing(tmp_path: Path) -> None:
    async with await open_store("memory:") as store:
        await Witnesses(ServerSettings(anchor_log=str(tmp_path / "log")), store, Metrics()).tell()
        await run(store, (await create(store)).id, "one")
        nobody = Witnesses(ServerSettings(), store, Metrics())
        await nobody.watch()
        await nobody.tell()
        assert (await store.anchor()).number == 1, "nobody wanted an anchor, so there was no seal"
    assert not (tmp_path / "log").exists()
