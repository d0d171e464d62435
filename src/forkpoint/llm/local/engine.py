"""llama.cpp in this process: one engine for each model file and context size, shared by all who ask.

An engine is loaded by whoever asks first, in a thread, while the others wait for it. Its calls block in threads of
their own, and a call that is cancelled has ended in llama.cpp too before its caller goes on.
"""

import os
import secrets
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias
from weakref import WeakSet

import msgspec

from forkpoint.errors import AnswerMalformed, ExtraBroken, ForkpointError, NoWeights, RequestRefused
from forkpoint.llm.local.bridge import converse
from forkpoint.llm.local.llama import PACKAGE
from forkpoint.llm.local.llama import load as load_llama
from forkpoint.llm.local.slots import SlotPlace, Slots, chain_of
from forkpoint.threads.wakeup import end_of, in_thread, result_of

Progress: TypeAlias = Callable[[str], None]
"""Is told in words what takes a while."""

CONTEXT = 8192
"""Tokens of context that each call has, if nobody says otherwise: all that SmolLM2 was trained for."""

BATCH = 64
"""Tokens of a prompt that are read between two looks at whether to go on. Larger ones are hardly faster on a CPU."""

BIG = 1 << 30  # bytes of a file from which a model is big, and gets fewer slots with a larger cache behind them

_WASH = {"prompt": [100] * 8, "n_predict": 0, "cache_prompt": False}  # tokens that no template begins with


class Llama:
    """A model file, loaded when it is first asked. May be shared by any number of loops and threads."""

    def __init__(
        self,
        path: Path,
        *,
        model: str | None = None,
        context_tokens: int | None = None,
        slots: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.path = path
        self.model = model or f"local/{path}"  # how errors call it
        self.context_tokens = context_tokens or CONTEXT
        self.users: WeakSet[Any] = WeakSet()  # providers that will say when they are done with it
        self._slots = slots
        self._progress = progress or on_terminal
        self._lock = threading.Lock()
        self._loading: Future[_Loaded] | None = None

    async def load(self) -> None:
        """Loads the model, unless it is loaded already. Raises `NoWeights`, or what `llama.load` raises."""
        await self._loaded()

    async def chat(self, body: dict[str, Any], heard: Callable[[Any], None]) -> None:
        """Answers a chat-completions request. Each chunk, errors too, is told to ``heard`` in the caller's task.

        Raises what ``heard`` raises. Whichever way it ends, nothing of the call is under way any more.
        """
        while not (loaded := await self._loaded()).enter():
            pass  # it was closed in between, and is loaded again
        try:
            await self._chat(loaded, body, heard)
        finally:
            loaded.leave()

    async def _chat(self, loaded: "_Loaded", body: dict[str, Any], heard: Callable[[Any], None]) -> None:
        place = await loaded.slots.take(chain_of(body))

        def hear(text: str) -> None:
            try:
                chunk = msgspec.json.decode(text)
            except msgspec.DecodeError as error:
                raise AnswerMalformed(self.model, f"a piece of it is not JSON ({error})") from error
            heard(chunk)

        def work(tell: Callable[[str], bool]) -> None:
            try:
                loaded.chat(body, place, tell)
            except RuntimeError as error:
                raise RequestRefused(self.model, str(error)) from error

        try:
            await converse(f"forkpoint {self.model}", work, hear)
        finally:
            loaded.slots.give_back(place)

    async def aclose(self) -> None:
        """Frees the memory, once calls that are under way have ended. A later call loads the model again."""
        with self._lock:
            loading, self._loading = self._loading, None
        if loading is None:
            return

        def close() -> None:
            with suppress(ForkpointError):
                loading.result().close()

        await end_of(in_thread(f"forkpoint closes {self.model}", close))

    @property
    def slots(self) -> Slots | None:
        """The slots of the model, if it is loaded."""
        loading = self._loading
        return loading.result().slots if loading is not None and loading.done() and not loading.exception() else None

    async def _loaded(self) -> "_Loaded":
        with self._lock:
            loading = self._loading
            if loading is None or (loading.done() and loading.exception() is not None):
                loading = self._loading = in_thread(f"forkpoint loads {self.model}", self._load)
        return await result_of(loading)

    def _load(self) -> "_Loaded":
        llama = load_llama(self.model)
        try:
            size = self.path.stat().st_size
        except OSError as error:
            raise NoWeights(self.model, error.strerror or str(error)) from None
        started = time.perf_counter()
        self._progress(f"loading {self.path.stem} ({size / 1e6:,.0f} MB) ...")
        count = self._slots or (2 if size >= BIG else 4)
        try:
            loaded = _Loaded(llama, self.path, count, self.context_tokens, cache=4096 if size >= BIG else 1024)
        except (AttributeError, TypeError) as error:  # another version of it, which has other names
            raise ExtraBroken(self.model, PACKAGE, str(error)) from error
        except Exception as error:
            raise NoWeights(self.model, f"llama.cpp cannot load the file: {error}") from error
        self._progress(f"loaded in {time.perf_counter() - started:.1f} s")
        return loaded


class _Loaded:
    """A model in memory, until it is closed and nobody uses it any more."""

    def __init__(self, llama: Any, path: Path, slots: int, context: int, *, cache: int) -> None:
        self.slots = Slots(slots)
        settings = llama.CommonParams()
        settings.model.path = str(path)
        settings.n_parallel = slots
        settings.n_ctx = context * slots  # llama.cpp gives each slot its part
        settings.kv_unified = False  # else idle slots are cleared, and a fork finds nothing to copy
        settings.cache_idle_slots = True
        settings.cache_ram_mib = cache
        settings.n_batch = settings.n_ubatch = BATCH
        for threads in (settings.cpuparams, settings.cpuparams_batch):
            threads.n_threads = _cores()
            threads.poll = 0  # on a busy machine threads that wait by spinning take the time of those that work
        settings.verbosity = -1
        settings.ui = settings.endpoint_slots = False
        # It always listens as well: on this machine only, on a port of its choice, behind a secret that nobody knows.
        settings.hostnames = ["127.0.0.1"]
        settings.port = 0
        settings.api_keys = [secrets.token_urlsafe(32)]
        self._lock = threading.Lock()
        self._users = 0
        self._closed = False
        self._server: Any = llama.Server(settings)

    def enter(self) -> bool:
        """Whether the caller may use it, and is to `leave` it afterwards."""
        with self._lock:
            self._users += not self._closed
            return not self._closed

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users or not self._closed:
                return
        in_thread("forkpoint frees a model", self._free)  # it takes a moment: not in the loop's thread

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._users:
                return
        self._free()

    def _free(self) -> None:
        self._server = None  # not left to the garbage collector: a traceback may hold this object for long

    def chat(self, body: dict[str, Any], place: SlotPlace, tell: Callable[[str], bool]) -> None:
        """Blocks until the answer is whole, or ``tell`` returns True."""
        if place.wash is not None:
            try:
                self._server.handle_completions(_json(_WASH | {"id_slot": place.wash}), lambda _: None)
            finally:
                self.slots.washed(place)
        here = {"id_slot": place.slot, "cache_prompt": True, "return_progress": True}
        self._server.handle_chat_completions(_json(body | here), tell)


_ENGINES: dict[tuple[int, Path, int], Llama] = {}
_ENGINES_LOCK = threading.Lock()


def engine_for(
    path: Path, user: object, *, model: str, context_tokens: int | None = None, progress: Progress | None = None
) -> Llama:
    """The engine of this process for a file and a context size. The user is to `leave` it some day."""
    key = os.getpid(), path.resolve(), context_tokens or CONTEXT  # a forked child has none of its parent's threads
    with _ENGINES_LOCK:
        if key not in _ENGINES:
            _ENGINES[key] = Llama(path, model=model, context_tokens=context_tokens, progress=progress)
        _ENGINES[key].users.add(user)
        return _ENGINES[key]


async def leave(user: object) -> None:
    """A user is done with all its engines. Those that nobody else uses are closed."""
    with _ENGINES_LOCK:
        left = [engine for engine in _ENGINES.values() if user in engine.users]
        for engine in left:
            engine.users.discard(user)
        unused = [engine for engine in left if not engine.users]
    for engine in unused:
        await engine.aclose()


def on_terminal(line: str) -> None:
    """Says it to whoever sits at the terminal, if anybody does."""
    if sys.stderr is not None and sys.stderr.isatty():
        print(line, file=sys.stderr, flush=True)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
