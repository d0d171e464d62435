"""Asking a model: one call, with whatever it takes to get an answer or a clear failure.

A call is tried again only when the error is of a passing kind, and never after a part of the answer was shown to
somebody as final. What each attempt cost is counted, whichever way the call ends, being cancelled included.
"""

import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Self, assert_never

import anyio
import anyio.to_thread

from forkpoint.errors import BadSetting, BudgetExceeded, ForkpointError, ModelError, ModelUnavailable
from forkpoint.events import ModelCalled, Usage
from forkpoint.llm.answers import Answer, Complete, Failed, Outcome
from forkpoint.llm.attempt import Hearing
from forkpoint.llm.catalog import Wire
from forkpoint.llm.failures import names_the_cache_key
from forkpoint.llm.model import LLM
from forkpoint.llm.options import Options
from forkpoint.llm.prices import is_priced_by_list, load_list, load_prices, needs_list, priced, unpriced
from forkpoint.llm.prompt.identity import CallContext
from forkpoint.llm.prompt.manifest import manifest_of
from forkpoint.llm.prompt.rendering import Rendering
from forkpoint.llm.request import Admission, Provider, Request
from forkpoint.updates import Piece, Restarted


class Models:
    """All models that a program asks. It pools clients and keeps local engines; of conversations it holds nothing.

    ``async with Models() as models: outcome = await models.call(llm, rendering, context)``
    """

    def __init__(
        self, providers: Mapping[Wire, Provider] | None = None, *, jitter: Callable[[], float] = random.random
    ) -> None:
        self._providers: dict[Wire, Provider] = dict(providers or {})
        self._refuses_key: set[str] = set()
        self._jitter = jitter

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes this event loop's connections and frees local models. A later call opens them again."""
        for provider in list(self._providers.values()):
            await provider.aclose()

    def request(self, llm: LLM, rendering: Rendering, context: CallContext, options: Options = Options()) -> Request:
        """The exact request that a call would send now."""
        _check_fits(llm, rendering, options)
        key = context.identity.key if self._sends_key(llm) else None
        routed = () if llm.wire in {"local", "scripted"} else llm.session_headers
        headers = *((name, context.identity.session) for name in routed), *llm.headers
        body = rendering.body(llm, context, options, key=key)
        return Request(llm, rendering, context, options, body, headers, key)

    async def call(
        self,
        llm: LLM,
        rendering: Rendering,
        context: CallContext,
        options: Options = Options(),
        *,
        heard: Callable[[Piece], None] | None = None,
        final: bool = False,
        retried: Callable[[], bool] | None = None,
        record: Callable[[ModelCalled], None] | None = None,
        admit: Admission | None = None,
    ) -> Outcome:
        """Asks, and gives the outcome: the whole answer or a typed failure.

        Each piece is told to ``heard`` as it comes. Pieces are provisional: after a `Restarted` those of the same call
        are void. If they are shown to somebody who cannot take them back, say ``final``: then the call is not tried
        again once anything was heard. Nor is it while ``retried`` says that whoever asked will ask again if it fails:
        retries of both sides would multiply. ``record`` is given the call's record exactly once, also if the call is
        cancelled. ``admit`` is asked before each attempt; if it raises before the first one, no model was asked, and
        there is no record.

        What keeps a call from being made at all, such as a missing key or missing weights, is raised.
        """
        llm.key()  # a missing one is said before anything else
        calling = _Calling(llm, rendering, context, until=anyio.current_time() + llm.timeouts.total)
        record = record or (lambda _: None)
        try:
            outcome = await self._until_done(calling, options, heard, final, retried or (lambda: False), admit)
        except BaseException as error:
            if calling.attempts or not isinstance(error, BudgetExceeded):
                record(calling.called(error=_code_of(error)))
            raise
        record(outcome.called)
        return outcome

    async def _until_done(
        self,
        calling: "_Calling",
        options: Options,
        heard: Callable[[Piece], None] | None,
        final: bool,
        retried: Callable[[], bool],
        admit: Admission | None,
    ) -> Outcome:
        llm = calling.llm
        provider = self._provider(llm.wire)
        while True:
            request = self.request(llm, calling.rendering, calling.context, options)
            if admit is not None:
                request = await self._admitted(admit, request, calling.used)
            hearing = calling.attempt(request, heard)
            try:
                answer = await self._attempt(provider, request, hearing)
            except ModelError as error:
                if self._learns_from(error, request):
                    calling.attempts -= 1  # the server said nothing about the prompt
                    continue
                wait = self._wait(calling, error, stop=(final and hearing.spoke) or retried())
                if wait is None:
                    return Failed(error, calling.called(error=error.code))
                if hearing.spoke and heard is not None:
                    heard(Restarted(error.code))
                await anyio.sleep(wait)
            else:
                return Complete(answer, calling.called(finish=answer.finish))

    async def _admitted(self, admit: Admission, request: Request, used: Usage) -> Request:
        """The request as it may be sent."""
        await load_prices(request.llm)
        allowed = await admit(request, used)
        if allowed == request.options:
            return request
        return self.request(request.llm, request.rendering, request.context, allowed)

    async def _attempt(self, provider: Provider, request: Request, hearing: Hearing) -> Answer:
        answer: Answer | None = None
        try:
            with hearing.scope:
                hearing.wait_for_first()
                answer = await provider.ask(request, hearing)
        finally:
            used = hearing.usage
            if needs_list(request.llm, used):
                hearing.usage = unpriced(used)  # what it cost is unknown until the list is there
                with anyio.CancelScope(shield=True):
                    await load_prices(request.llm)
            hearing.usage = priced(request.llm, used)
        if answer is None:
            raise ModelUnavailable.model_timeout(request.model, hearing.waited_for)
        if not hearing.usage:  # the server answered, and said nothing of what that took
            hearing.usage = unpriced(Usage(calls=1))
        return answer

    def _wait(self, calling: "_Calling", error: ModelError, *, stop: bool) -> float | None:
        """How long to wait before the next attempt; None if there shall be none."""
        retries = calling.llm.retries
        if stop or not error.passing or error.lasting or calling.attempts >= retries.attempts:
            return None
        if error.retry_after is not None:
            wait = error.retry_after + retries.wait * self._jitter()
            over = error.retry_after > retries.longest
        else:
            wait = min(retries.wait * 2 ** (calling.attempts - 1), retries.longest) * (0.5 + self._jitter() / 2)
            over = False
        return None if over or anyio.current_time() + wait >= calling.until else wait

    def _sends_key(self, llm: LLM) -> bool:
        match llm.cache_key:
            case "never":
                return False
            case "send":
                return llm.wire in {"chat", "responses", "scripted"}
            case "auto":
                return llm.wire in {"chat", "responses", "scripted"} and _address(llm) not in self._refuses_key
            case _ as never:
                assert_never(never)

    def _learns_from(self, error: ModelError, request: Request) -> bool:
        """Whether a server has just refused the cache key by name, so that the call is repeated without."""
        if request.key is None or request.llm.cache_key != "auto" or not names_the_cache_key(error):
            return False
        self._refuses_key.add(_address(request.llm))
        return True

    def _provider(self, wire: Wire) -> Provider:
        if wire not in self._providers:
            self._providers[wire] = _make_provider(wire)
        return self._providers[wire]


class _Calling:
    """One call over all its attempts: what was spent, and how long it took."""

    def __init__(self, llm: LLM, rendering: Rendering, context: CallContext, until: float) -> None:
        self.llm = llm
        self.rendering = rendering
        self.context = context
        self._until = until
        self.attempts = 0
        self._started = time.perf_counter()
        self._hearings: list[Hearing] = []
        self._key: str | None = None

    @property
    def until(self) -> float:
        """When the call has taken too long. The time in which modules were loaded does not count."""
        return self._until + sum(hearing.loaded_for for hearing in self._hearings)

    def attempt(self, request: Request, heard: Callable[[Piece], None] | None) -> Hearing:
        self.attempts += 1
        self._key = request.key
        self._hearings.append(Hearing(heard, timeouts=self.llm.timeouts, until=self.until))
        return self._hearings[-1]

    @property
    def used(self) -> Usage:
        """What all its attempts have cost."""
        return sum((hearing.usage for hearing in self._hearings), Usage())

    def called(self, *, finish: str | None = None, error: str | None = None) -> ModelCalled:
        """The record of the call as it stands."""
        last = self._hearings[-1] if self._hearings else None
        return ModelCalled(
            model=self.llm.model,
            provider=self.rendering.manifest.origin,
            usage=self.used,
            finish=finish,
            error=error,
            key=self._key,
            prefix=self.rendering.prefix,
            manifest=self.rendering.manifest.hash,
            blocks=len(self.rendering.blocks),
            attempts=self.attempts,
            first_token=last.first_token if last else None,
            duration=time.perf_counter() - self._started,
            response_id=last.response_id if last else None,
        )


def _check_fits(llm: LLM, rendering: Rendering, options: Options) -> None:
    """Raises `BadSetting` for a prompt of another model, or if a tool is demanded that is not there."""
    manifest = rendering.manifest
    made_for = manifest_of(llm, renderer=manifest.renderer)
    for name in ("model", "wire", "provider", "reasoning_effort", "reasoning_tokens", "reasoning_back"):
        if getattr(made_for, name) != getattr(manifest, name):
            raise BadSetting.bad_prompt(
                llm.model, "this prompt", f"it was rendered for another {name}, {getattr(manifest, name)}"
            )
    named = options.tool_choice not in {"auto", "none", "required"}
    if named and not any(tool.name == options.tool_choice for tool in manifest.tools):
        raise BadSetting(llm.model, "tool_choice", f"there is no tool {options.tool_choice!r}")


def _code_of(error: BaseException) -> str:
    if isinstance(error, ForkpointError):
        return error.code
    return "cancelled" if isinstance(error, anyio.get_cancelled_exc_class()) else "error"


def _address(llm: LLM) -> str:
    return llm.base_url or (llm.model if llm.kind == "scripted" else llm.kind)


def load_modules(llm: LLM) -> None:
    """Loads what the first call of a model would load, which takes a second: not in a loop's thread.

    What cannot be loaded is left to that call, which says why.
    """
    with suppress(ForkpointError):
        match llm.wire:
            case "chat" | "responses" | "messages":
                from forkpoint.llm.providers import clients

                clients.load("anthropic" if llm.wire == "messages" else "openai")
            case "local":
                from forkpoint.llm.local import llama

                llama.load(llm.model)
            case "scripted":
                pass
            case _ as never:
                assert_never(never)
    _make_provider(llm.wire)
    if is_priced_by_list(llm):
        load_list()


def _make_provider(wire: Wire) -> Provider:
    match wire:
        case "chat" | "responses" | "messages":
            from forkpoint.llm.providers.sdk import SdkProvider

            return SdkProvider(wire)
        case "local":
            from forkpoint.llm.providers.local import LocalProvider

            return LocalProvider()
        case "scripted":
            from forkpoint.llm.providers.scripted import ScriptedProvider

            return ScriptedProvider()
        case _ as never:
            assert_never(never)
