"""A provider's key is nowhere to be read: in no error and no frame that led to it, on no disk, in no log and no span.

A traceback may be shown with the local variables of each frame, as rich and pytest do; so those are looked through too.
"""

import http.server
import io
import logging
import threading
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import anyio
import msgspec
import pytest
import rich.console
import rich.traceback
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.llm.test_call import CONTEXT, asks, failure

from forkpoint import Agent, Conversation
from forkpoint.errors import BadSetting, ModelError, TurnFailed
from forkpoint.llm import LLM, Models, Retries
from forkpoint.llm.key import Key
from forkpoint.llm.scripts import Fault, Reply, Script
from forkpoint.masking import HiddenInLogs
from forkpoint.testing.model_server import ModelServer

SECRET = "q7Zr-very-own-key-4711"  # without a prefix by which it could be told for a key
ONCE = Retries(attempts=1)
FAULTS = {
    "401": Fault("authentication", message=f"no such key: {SECRET}"),
    "400": Fault("bad_request", message=f"bad header 'Bearer {SECRET}'"),
    "500": Fault("status", status=500, message=f"at handle(authorization='{SECRET}')"),
    "401, cut": Fault("authentication", message="x" * 485 + SECRET),
    "an error within the answer": Fault("overloaded", after=1, message=f"lost {SECRET}"),
    "an error within the answer, cut": Fault("overloaded", after=1, message="x" * 485 + SECRET),
    "a piece that is not JSON": Fault("malformed", after=1),
    "a connection that breaks": Fault("cut", after=1),
    "a connection that is refused": None,
}


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize(("wire", "given"), [("chat", "literal"), ("responses", "variable"), ("messages", "variable")])
def test_a_key_is_in_nothing_that_is_left_of_a_failed_call(
    wire: str,
    kind: str,
    given: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    spans: InMemorySpanExporter,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("THEIR_KEY", SECRET)
    fault = FAULTS[kind]
    with ModelServer(Script([Reply("Hello there", piece=4, fault=fault)])) as server:
        llm = llm_at(server.root if wire == "messages" else server.url, wire, given)
        if fault is not None:
            failed = fails(tmp_path, llm)
            assert server.last.header("authorization") == f"Bearer {SECRET}"
    if fault is None:
        failed = fails(tmp_path, llm)
    assert isinstance(failed.cause, ModelError)
    look_through(failed)
    for file in files_in(tmp_path):
        hidden(f"the file {file.name}", file.read_bytes())
    hidden("the log", caplog.text)
    for record in caplog.records:
        hidden("a record of the log", record.__dict__)
    hidden("the spans", [span.to_json() for span in spans.get_finished_spans()])
    if fault is not None and fault.message is not None and "cut" not in kind:
        assert "***" in failed.cause.detail, "what the server said is kept, but for the key"


def test_a_server_that_repeats_all_that_it_hears_shows_nobody_the_key(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with RepeatingServer() as address:
        failed = fails(tmp_path, LLM("openai/m", api="chat", base_url=address, api_key=SECRET, retries=ONCE))
    look_through(failed)
    shown = rich.traceback.Traceback.from_exception(
        type(failed), failed, failed.__traceback__, show_locals=True, locals_max_length=1000, locals_max_string=9000
    )
    console = rich.console.Console(file=io.StringIO(), width=400)
    console.print(shown)
    hidden("the traceback of rich", console.file.getvalue())  # type: ignore[attr-defined]
    hidden("the log", caplog.text)
    assert "x-heard" in caplog.text, "the HTTP client logs the headers of an answer, so that this is a test"


@pytest.mark.parametrize("wire", ["chat", "messages"])
def test_a_server_that_repeats_the_key_in_a_broken_header_shows_it_in_no_traceback_of_the_log(
    wire: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with RepeatingServer(broken=True) as address:
        failed = fails(tmp_path, llm_at(address, wire, "literal"))
    look_through(failed)
    hidden("the log", caplog.text)
    for record in caplog.records:
        hidden("a record of the log", record.__dict__)
    assert "illegal header line: bytearray(b'no header *** at all')" in caplog.text
    if wire == "messages":
        assert "Traceback (most recent call last)" in caplog.text, (
            "the SDK of Anthropic logs it, so that this is a test"
        )


def test_two_secrets_of_two_clients_are_both_hidden_in_one_traceback(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("tests.two_clients")
    for secret in ("first-of-4711", "second-of-4711"):
        logger.addFilter(HiddenInLogs(Key(secret).hide))
    try:
        raise ValueError("first-of-4711 and second-of-4711")
    except ValueError:
        logger.warning("failed", exc_info=True)
    assert caplog.records[0].exc_info is None, "the object has frames, and their variables"
    assert str(caplog.records[0].exc_text).endswith("ValueError: *** and ***")


def test_a_call_that_is_cancelled_leaves_no_key_in_the_frames_it_was_cancelled_in(tmp_path: Path) -> None:
    seen: list[BaseException] = []

    async def main() -> None:
        with ModelServer(Script([Reply("Hello", fault=Fault("hang"))])) as server:
            llm = LLM("openai/m", base_url=server.url, api_key=SECRET, retries=ONCE)
            async with Models() as models, anyio.create_task_group() as tasks:

                async def ask() -> None:
                    try:
                        await models.call(llm, asks(llm), CONTEXT)
                    except BaseException as error:
                        seen.append(error)
                        raise

                tasks.start_soon(ask)
                await server.heard(1)
                tasks.cancel_scope.cancel()

    anyio.run(main)
    assert len(seen) == 1
    look_through(seen[0])


def test_what_a_client_cannot_do_is_an_error_of_the_call_and_not_of_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    from openai._base_client import AsyncAPIClient

    async def broken(self: Any, *_: object, **__: object) -> None:
        raise ZeroDivisionError(f"in the middle of {SECRET}")

    monkeypatch.setattr(AsyncAPIClient, "post", broken)

    async def main() -> None:
        llm = LLM("openai/m", base_url="http://127.0.0.1:9", api_key=SECRET, retries=ONCE)
        async with Models() as models:
            error = failure(await models.call(llm, asks(llm), CONTEXT))
        look_through(error)
        assert "ZeroDivisionError: in the middle of ***" in str(error)

    anyio.run(main)


def test_what_looks_like_another_key_is_not_stored_either(tmp_path: Path) -> None:
    other = "sk-proj-0123456789abcdefghij"
    fault = Fault("bad_request", message=f"the upstream key {other} is over its limit")
    with ModelServer(Script([Reply(fault=fault)])) as server:
        failed = fails(tmp_path, LLM("openai/m", base_url=server.url, retries=ONCE))
    assert "the upstream key sk-*** is over its limit" in str(failed)
    assert failed.turn.error is not None
    assert "sk-***" in failed.turn.error.message
    assert all(other.encode() not in file.read_bytes() for file in files_in(tmp_path))


def test_the_provider_s_name_for_a_request_that_it_refused_is_kept(tmp_path: Path) -> None:
    with ModelServer(Script([Reply(fault=Fault("bad_request"))])) as server:
        failed = fails(tmp_path, LLM("openai/m", base_url=server.url, retries=ONCE))
    assert isinstance(failed.cause, ModelError)
    assert failed.cause.provider_request == "req_0"


def test_an_environment_s_key_that_no_header_can_carry_is_not_shown_where_it_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("THEIR_KEY", f"{SECRET} ä")
    with pytest.raises(BadSetting) as refused:
        LLM("openai/m", api_key_env="THEIR_KEY").key()
    look_through(refused.value)


@pytest.mark.parametrize("key", [SECRET.encode(), [SECRET], {"key": SECRET}])
def test_a_key_that_is_no_text_is_not_shown_where_it_is_refused(key: Any) -> None:
    settings = {"api_key": key}
    with pytest.raises(BadSetting) as refused:
        LLM("openai/gpt-5", **settings)
    look_through(refused.value, ours_only=True)


# Errors are judged before anything in them is hidden.


@pytest.mark.parametrize("key", ["key", "e", "prompt_cache_key", "cache", "prompt", "invalid_value", "none"])
@pytest.mark.parametrize("wire", ["chat", "responses"])
def test_a_key_that_is_a_common_word_does_not_keep_a_server_from_being_understood(wire: str, key: str) -> None:
    async def main() -> None:
        with ModelServer(Script([Reply("Hi", fault=Fault("refuses_cache_key"))], repeat=True)) as server:
            llm = LLM("openai/m", api=wire, base_url=server.url, api_key=key, retries=ONCE)  # type: ignore[arg-type]
            async with Models() as models:
                outcome = await models.call(llm, asks(llm), CONTEXT)
            assert [request.key for request in server.requests] == [CONTEXT.identity.key, None]
            assert server.last.header("authorization") == f"Bearer {key}"
        assert outcome.called.error is None

    anyio.run(main)


@pytest.mark.parametrize("key", ["context", "long", "window", "context window"[:7]])
def test_a_key_that_is_a_word_of_an_error_does_not_change_what_the_error_is(key: str) -> None:
    async def main() -> None:
        said = Fault("bad_request", message="Your input exceeds the context window of this model")
        with ModelServer(Script([Reply(fault=said)])) as server:
            llm = LLM("openai/m", base_url=server.url, api_key=key, retries=ONCE)
            async with Models() as models:
                error = failure(await models.call(llm, asks(llm), CONTEXT))
        assert error.code == "model_context_too_long"

    anyio.run(main)


@pytest.mark.parametrize(
    ("key", "said", "shown"),
    [
        ("key", "the key prompt_cache_key is not a keyword", "the *** prompt_cache_key is not a keyword"),
        ("key", "keys, key.", "keys, ***."),
        (SECRET, f"a{SECRET}b {SECRET}", "a***b ***"),
        (SECRET, f"no such key: {SECRET[:10]}...", "no such key: ***..."),
        (SECRET, f"no such key: {SECRET[:3]}...", f"no such key: {SECRET[:3]}..."),
        (SECRET, "Bearer abcdefghijkl", "Bearer ***"),
    ],
)
def test_a_key_is_hidden_wherever_it_stands_and_a_short_key_only_as_a_word(key: str, said: str, shown: str) -> None:
    assert Key(key).hide(said) == shown


# Helpers.


def llm_at(base_url: str, wire: str, given: str) -> LLM:
    key: dict[str, Any] = {"api_key": SECRET} if given == "literal" else {"api_key_env": "THEIR_KEY"}
    if wire == "messages":
        return LLM("anthropic/m", base_url=base_url, retries=ONCE, **key)
    return LLM("openai/m", api=wire, base_url=base_url, retries=ONCE, **key)  # type: ignore[arg-type]


def fails(folder: Path, llm: LLM) -> TurnFailed:
    """What a turn fails with."""
    store = f"sqlite:///{folder / 'store.db'}"
    with Conversation(agent=Agent(llm), store=store) as conversation, pytest.raises(TurnFailed) as failed:
        conversation.run("Hi")
    return failed.value


def files_in(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def look_through(error: BaseException, *, ours_only: bool = False) -> None:
    """Fails if the key is anywhere in an error, in whatever led to it, or in a variable of a frame of any of them."""
    left: list[BaseException | None] = [error]
    seen: set[int] = set()
    while left:
        one = left.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        hidden(f"{type(one).__name__}", [str(one), repr(one), one.args, vars(one)])
        for where, variables in frames(one.__traceback__, ours_only):
            for name, value in variables.items():
                hidden(f"the variable {name} of {where}", value)
        left += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]
    if not ours_only:
        hidden("the traceback", "".join(traceback.format_exception(error)))


def frames(trace: TracebackType | None, ours_only: bool) -> Iterator[tuple[str, Mapping[str, Any]]]:
    while trace is not None:
        code = trace.tb_frame.f_code
        is_test = code.co_filename == __file__
        if not is_test and not (ours_only and "forkpoint" not in code.co_filename):
            yield f"{code.co_qualname} in {code.co_filename}:{trace.tb_lineno}", dict(trace.tb_frame.f_locals)
        trace = trace.tb_next


def hidden(where: str, value: Any) -> None:
    """Fails if the key is in a value, in what it holds, or in what is printed of either."""
    left, seen = [(value, 0)], set[int]()
    while left:
        one, depth = left.pop()
        if id(one) in seen or depth > 12 or isinstance(one, Key | ModuleType | type):
            continue
        seen.add(id(one))
        for text in (one if isinstance(one, str) else "", printed(one)):
            assert SECRET not in text, f"the key is in {where}: {text[:2000]}"
            assert SECRET[:12] not in text, f"most of the key is in {where}: {text[:2000]}"
        match one:
            case bytes() | bytearray():
                assert SECRET.encode() not in one, f"the key is in {where}"
            case Mapping():
                left += [(inner, depth + 1) for item in list(one.items()) for inner in item]
            case list() | tuple() | set() | frozenset():
                left += [(inner, depth + 1) for inner in one]
            case msgspec.Struct():
                left += [(getattr(one, name, None), depth + 1) for name in one.__struct_fields__]
            case _ if type(one).__module__.partition(".")[0] in {"forkpoint", "httpx2", "openai", "anthropic"}:
                left += [(inner, depth + 1) for inner in getattr(one, "__dict__", {}).values()]
            case _:
                pass


def printed(value: Any) -> str:
    try:
        return repr(value)
    except Exception:
        return ""


class RepeatingServer:
    """A server that refuses every request, and repeats all of it in the headers and the body of its answer.

    One that is ``broken`` answers with a line that is no header, and repeats the key in it.
    """

    def __init__(self, *, broken: bool = False) -> None:
        self._broken = broken

    def __enter__(self) -> str:
        broken = self._broken

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                if broken:
                    key = self.headers["authorization"].removeprefix("Bearer ")
                    self.wfile.write(f"HTTP/1.1 200 OK\r\nno header {key} at all\r\n\r\n".encode())
                    return
                said = msgspec.json.encode({"error": {"message": str(self.headers), "param": str(self.headers)}})
                self.send_response(400)
                self.send_header("x-heard", self.headers["authorization"])
                self.send_header("x-request-id", self.headers["authorization"])
                self.send_header("content-length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
