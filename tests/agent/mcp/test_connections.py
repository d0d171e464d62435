"""Whatever a server does, a call ends within its timeout; one that has failed is started anew for the next."""

import importlib
import json
import logging
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from tests.agent.mcp.calling import Tools, is_there, odd
from tests.agent.mcp.real_server import serving
from tests.slow_import import SlowImport

from forkpoint.agent.mcp import McpFailed, McpServer, connect, end_servers
from forkpoint.agent.mcp.processes import ServerOutput
from forkpoint.agent.mcp.tools import offers
from forkpoint.agent.secrets.masking import Masking
from forkpoint.events import Image

pytestmark = pytest.mark.anyio
both = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])


async def test_loading_the_sdk_does_not_count_against_a_server_s_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    importlib.import_module("jsonschema")
    slow = SlowImport(monkeypatch, "jsonschema")
    with pytest.raises(McpFailed) as failed:
        await connect(McpServer("gone", command=["false"], timeout=5))
    assert slow.imported == 1
    assert "within" not in failed.value.why


# One connection.


@both
async def test_a_server_is_started_once_and_used_by_all_calls_at_once() -> None:
    tools = await Tools.of(odd())
    pids: set[str] = set()

    async def call() -> None:
        pids.add(await tools.done("pid"))

    async with anyio.create_task_group() as group:
        for _ in range(10):
            group.start_soon(call)
    assert len(pids) == 1


async def test_a_server_outlives_the_event_loop_that_started_it() -> None:
    async def pid() -> str:
        return await (await Tools.of(odd())).done("pid")

    loops = [partial(anyio.run, pid, backend=backend) for backend in ("asyncio", "trio", "asyncio")]
    pids = {await anyio.to_thread.run_sync(loop) for loop in loops}
    assert len(pids) == 1


async def test_a_server_ends_when_it_is_told_to_and_comes_back_when_it_is_needed() -> None:
    tools = await Tools.of(odd())
    first = int(await tools.done("pid"))
    await end_servers()
    assert not is_there(first)
    assert int(await tools.done("pid")) != first


async def test_what_a_server_has_started_ends_with_it_even_in_a_session_of_its_own() -> None:
    (tool,) = await connect(odd("leaves"))
    child = int(tool.name.rpartition("-")[2])
    assert is_there(child)
    await end_servers()
    assert not is_there(child)


def test_servers_end_with_the_process_even_those_that_will_not() -> None:
    code = (
        "import sys, anyio; from forkpoint.agent.mcp import McpServer, connect\n"
        "import forkpoint.agent.mcp.processes as processes; processes.GRACE = 0.2\n"
        "assert not {'mcp', 'pydantic', 'httpx2'} & sys.modules.keys(), 'loaded before it is needed'\n"
        "async def main(): print((await connect(McpServer('odd', command=sys.argv[1:])))[0].name)\n"
        "anyio.run(main)"
    )
    command = [sys.executable, "-c", code, *odd("stubborn").command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    child = int(done.stdout.strip().rpartition("-")[2])
    assert not is_there(child), "what a server has started ends with it"


# Servers that fail.


@pytest.mark.parametrize(
    ("tool", "why"),
    [
        ("die", r"ended with exit code 3\. It may have done part of its work \(its standard error .*it hurts"),
        ("close", "has closed its output"),
        ("rubbish", r"writes what are no messages of MCP.*it wrote: this is no message of any kind"),
        ("huge", "sends a message of more than 16,777,216 bytes"),
    ],
)
async def test_a_server_that_breaks_in_the_middle_fails_the_call_and_is_started_anew(tool: str, why: str) -> None:
    tools = await Tools.of(odd())
    first = await tools.done("pid")
    assert_matches(why, await tools.failed(tool))
    assert await tools.done("pid") != first


async def test_an_answer_that_is_none_fails_the_call_alone() -> None:
    tools = await Tools.of(odd())
    first = await tools.done("pid")
    assert "gives an answer that is none" in await tools.failed("wrong_result")
    assert await tools.done("pid") == first


async def test_a_little_chatter_between_messages_is_put_up_with() -> None:
    assert await (await Tools.of(odd())).done("chatter") == "after the chatter"


async def test_a_server_that_hangs_fails_the_call_in_time_and_is_started_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forkpoint.agent.mcp.connections.PATIENCE", 0.1)
    first = await (await Tools.of(odd())).done("pid")
    tools = await Tools.of(odd(timeout=0.3))
    assert "did not answer within 0.3 s. It may have done part of its work" in await tools.failed("hang")
    assert await (await Tools.of(odd())).done("pid") != first


async def test_a_server_that_is_only_slow_keeps_its_connection_and_hears_that_nobody_waits() -> None:
    tools = await Tools.of(odd())
    first = await tools.done("pid")
    hasty = await Tools.of(odd(timeout=0.3))
    assert "did not answer within 0.3 s" in await hasty.failed("slow")
    assert await tools.done("pid") == first, "one connection for both, however long each is willing to wait"
    assert len(json.loads(await tools.done("cancelled"))) == 1


@both
async def test_a_call_that_is_cancelled_is_cancelled_at_the_server() -> None:
    tools = await Tools.of(odd())
    await tools.done("pid")
    with anyio.move_on_after(0.1):
        await tools.done("slow")
    with anyio.fail_after(10):
        while not json.loads(await tools.done("cancelled")):
            await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize(
    ("manner", "why"),
    [
        ("dies", r"ended with exit code 1 \(its standard error ends with: no key was given\)"),
        ("silent", "did not (start|list its tools) within 0.5 s"),
        ("yes", "writes what are no messages of MCP"),
    ],
)
async def test_a_server_that_does_not_come_up_says_why(manner: str, why: str) -> None:
    with pytest.raises(McpFailed) as raised:
        await connect(odd(manner, timeout=0.5 if manner == "silent" else 20))
    assert_matches(why, str(raised.value))


@pytest.mark.parametrize("value", ["ghp_SECRETSECRET1234567890", "line one ab\nline two cd\nline three"])
@pytest.mark.parametrize("manner", ["tells", "shows"])
async def test_what_a_server_said_is_masked_before_it_is_cut(
    manner: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN_OF_OURS", value)
    with pytest.raises(McpFailed) as raised:
        await connect(odd(manner, env={"TOKEN": "${TOKEN_OF_OURS}"}))
    said = str(raised.value)
    assert "***" in said
    assert not [value[at : at + 6] for at in range(len(value) - 5) if " ".join(value[at : at + 6].split()) in said]


async def test_half_of_a_value_at_the_end_is_masked_and_what_only_looks_like_one_is_not() -> None:
    heard = ServerOutput(Masking(["ghp_SECRETSECRET"]))
    for chunk in (b"a gh", b"ost \xc3", b"\xa9 ghp_SECRET"):
        heard.error(chunk)
    assert heard.told() == " (its standard error ends with: a ghost é ***)"
    heard.error(b"SECRET, and more")
    assert heard.told() == " (its standard error ends with: a ghost é ***, and more)"


async def test_a_list_that_changes_while_it_is_read_is_read_again() -> None:
    server = odd("moving")
    assert "added" not in [one.tool for one in (await offers([server]))["odd"]]
    assert "added" in [one.tool for one in (await offers([server], {"odd": ()}))["odd"]]


@pytest.mark.parametrize("command", [["/no/such/program"], ["/"]])
async def test_a_program_that_is_not_there_is_said(command: list[str]) -> None:
    with pytest.raises(McpFailed, match="cannot be started"):
        await connect(McpServer("a", command=command))


async def test_a_servers_own_schemas_are_not_followed_into_endless_work() -> None:
    tools = await Tools.of(odd("regex", timeout=5))
    assert await tools.done("answer") == "answered"


async def test_connections_that_nobody_uses_make_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forkpoint.agent.mcp.connections.MOST", 2)
    tools = [await Tools.of(odd(env={"N": str(n)})) for n in range(3)]
    pids = [int(await one.done("pid")) for one in reversed(tools)]
    with anyio.fail_after(10):
        while is_there(pids[0]):  # noqa: ASYNC110
            await anyio.sleep(0.01)


# Over HTTP.


@contextmanager
def web(answer: Any) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """The address of a server whose answers to a method are what a function says; and the headers that it got."""
    seen: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # what is sent goes in one piece

        def do_POST(self) -> None:
            seen.append({name.lower(): value for name, value in self.headers.items()})
            message = self.asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if "id" not in message:
                return self.reply(202, b"")
            if message["method"] == "initialize":
                version = message["params"]["protocolVersion"]
                info = {"name": "web", "version": "1"}
                found: Any = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
            elif message["method"] == "tools/list":
                found = {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]}
            else:
                found = answer(self)
            if isinstance(found, dict):
                return self.reply(200, json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": found}).encode())
            return None

        def do_GET(self) -> None:
            self.reply(405, b"")

        def do_DELETE(self) -> None:
            self.reply(200, b"")

        def reply(self, status: int, body: bytes, kind: str = "application/json", **headers: str) -> None:
            self.send_response(status)
            for name, value in {"Content-Type": kind, "Mcp-Session-Id": "s1", **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body)))
            with suppress(OSError):
                self.end_headers()
                self.wfile.write(body)
                self.wfile.flush()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/mcp", seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def test_each_request_has_the_headers_that_are_named_with_their_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "hidden-value")
    with web(lambda _: {"content": [{"type": "text", "text": "it was hidden-value"}]}) as (url, seen):
        tools = await Tools.of(McpServer("web", url=url, headers={"Authorization": "Bearer ${KEY}"}))
        assert await tools.done("web__t") == "it was ***"
        assert {headers["authorization"] for headers in seen} == {"Bearer hidden-value"}
        await end_servers()


async def test_a_call_that_is_refused_ends_no_other_call() -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def answer(one: Any) -> Any:
        if one.asked["params"].get("arguments"):
            refused = {"code": -32602, "message": "no such thing"}
            return one.reply(200, json.dumps({"jsonrpc": "2.0", "id": one.asked["id"], "error": refused}).encode())
        begun.set()
        assert goes_on.wait(20)
        return {"content": [{"type": "text", "text": "in the end"}]}

    with web(answer) as (url, _):
        tools = await Tools.of(McpServer("web", url=url))
        async with anyio.create_task_group() as group:

            async def wait() -> None:
                assert await tools.done("web__t") == "in the end"

            group.start_soon(wait)
            await anyio.to_thread.run_sync(begun.wait)
            assert "no such thing" in await tools.failed("web__t", '{"x": 1}')
            goes_on.set()
        await end_servers()


async def test_a_secret_in_an_address_is_in_no_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("KEY", "hidden-value")
    before = list(logging.getLogger("httpx2").filters)  # those of models that other tests have left open
    with web(lambda _: {"content": []}) as (url, _):
        tools = await Tools.of(McpServer("web", url=f"{url}?key=${{KEY}}"))
        await tools.done("web__t")
        await end_servers()
    assert "/mcp?key=***" in caplog.text
    assert "hidden-value" not in caplog.text
    assert logging.getLogger("httpx2").filters == before


ANSWERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "large": (lambda one: one.reply(200, b" " * (17 * 1024 * 1024)), "has more than 16,777,216 bytes"),
    "rubbish": (lambda one: one.reply(200, b"rubbish"), "Failed to parse"),
    "html": (lambda one: one.reply(200, b"<p>", "text/html"), "Unexpected content type"),
    "gone": (lambda one: one.reply(404, b""), "Session terminated"),
    "broken": (lambda one: one.reply(500, b""), "error response"),
    "cut": (lambda one: one.connection.shutdown(2), "may have done part of its work"),
    "away": (lambda one: one.reply(307, b"", Location="http://127.0.0.1:9/"), "not followed"),
    "packed": (lambda one: one.reply(200, b"x", Content_Encoding="gzip"), "may have done part of its work"),
}


@pytest.mark.parametrize("how", ANSWERS)
async def test_an_address_that_fails_in_the_middle_fails_the_call_and_the_next_is_greeted_anew(how: str) -> None:
    wrong, why = ANSWERS[how]
    answers: list[Callable[[Any], Any]] = [wrong, lambda _: {"content": [{"type": "text", "text": "well"}]}]
    with web(lambda one: answers.pop(0)(one)) as (url, _):
        tools = await Tools.of(McpServer("web", url=url, timeout=20))
        assert why in await tools.failed("web__t")
        assert await tools.done("web__t") == "well"
        await end_servers()


async def test_an_address_where_nobody_is_says_so() -> None:
    with pytest.raises(McpFailed, match="ConnectError"):
        await connect(McpServer("web", url="http://127.0.0.1:9/mcp", timeout=20))


# Real servers. Another one, from the package index, is talked to by docs/mcp.md, which is executed.


async def test_a_server_made_with_the_sdk_is_talked_to_over_http() -> None:
    with serving() as url:
        tools = await Tools.of(McpServer("real", url=url))
        assert list(tools.tools) == ["real__add", "real__picture", "real__works"]
        assert await tools.done("real__add", '{"a": 2}') == "3"
        assert "'a' is a required property" in await tools.failed("real__add")
        assert [type(part) for part in (await tools.result("real__picture")).parts] == [Image]
        told: list[str] = []
        assert await tools.done("real__works", progress=told.append) == "worked"
        assert told == ["1 of 2: half"]
        await end_servers()


def assert_matches(pattern: str, text: str) -> None:
    assert re.search(pattern, text), text
