"""Spans: a turn as OpenTelemetry sees it, for whoever has set that up. Nobody else pays for it.

A turn is a span ``invoke_agent NAME``. In it are ``chat MODEL`` for each time that a model was asked and
``execute_tool NAME`` for each tool that ran. Their attributes are those of the semantic conventions for generative AI,
and a few ``forkpoint.*``. They hold names, numbers and codes, and never what was said, asked for or answered.

While a turn or a tool runs, its span is the current one, so that what an instrumented client, a tool or another
conversation in it does becomes part of the same trace.
"""

import logging
import os
import sys
import time
from collections.abc import Mapping
from contextvars import Token
from typing import TYPE_CHECKING, Protocol, TypeAlias

from forkpoint.agent.agent import Agent
from forkpoint.backend.callbacks import Callback, Update
from forkpoint.backend.results import Turn
from forkpoint.errors import ForkpointError
from forkpoint.events import ModelCalled, ToolCall, ToolResult, Usage
from forkpoint.llm.prompt.manifest import PLAIN_NAME
from forkpoint.updates import Answered, CallEnded, CallStarted, Restarted, TurnStarted

if TYPE_CHECKING:  # loading it takes longer than a turn, and most programs have no use for it
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

Attributes: TypeAlias = Mapping[str, str | int | float | bool | tuple[str, ...]]

_log = logging.getLogger("forkpoint")


class Trace(Protocol):
    """How a turn is traced, or is not."""

    @property
    def tell(self) -> Callback:
        """What the turn tells its updates to, instead of to its listener."""
        ...

    def end(self) -> None:
        """Ends what the turn's own end has not, and what was current before is current again. Never raises."""
        ...


def traced(tell: Callback, *, conversation: str, tenant: str, agent: Agent) -> Trace:
    """The trace of a turn that begins now, a part of whatever span is current. Never raises.

    To be ended in the task that made it, when the turn is over in any way.
    """
    try:
        if (tracer := tracer_in_use()) is not None:
            return _Traced(tell, tracer, conversation, tenant, agent)
    except Exception:
        _log.exception("a turn could not be traced, and goes on")
    return _Untraced(tell)


def tracer_in_use() -> "Tracer | None":
    """Where spans are made; None if nothing in this process can have asked for any."""
    if "opentelemetry.trace" not in sys.modules and "OTEL_PYTHON_TRACER_PROVIDER" not in os.environ:
        return None
    from opentelemetry.trace import get_tracer

    from forkpoint.version import __version__

    return get_tracer("forkpoint", __version__)


class _Untraced:
    def __init__(self, tell: Callback) -> None:
        self.tell = tell

    def end(self) -> None:
        pass


class _Traced:
    """A turn's span, and those of its calls that are open."""

    def __init__(self, tell: Callback, tracer: "Tracer", conversation: str, tenant: str, agent: Agent) -> None:
        from opentelemetry import context, trace

        self.tell = tell
        self._inner = tell
        self._tracer = tracer
        self._common: Attributes = {"gen_ai.conversation.id": conversation, "forkpoint.tenant": tenant}
        self._used = Usage()  # of this run of the turn: what was spent before a resumption has spans of its own
        self._tools: dict[str, tuple[Span, Token[Context]]] = {}
        self._restarts: list[tuple[int, str]] = []  # of the model call that goes on, when and why
        self._is_told = False  # how the turn ended is known, and its span has ended
        self._span = tracer.start_span(_named("invoke_agent", agent.name), attributes=self._turn_attributes(agent))
        self._inside = trace.set_span_in_context(self._span)
        self._before = context.attach(self._inside)
        if self._span.is_recording():  # otherwise nobody looks, and the context alone is kept right
            self.tell = self._tell

    def end(self) -> None:
        try:
            from opentelemetry import context

            if not self._is_told:
                self._end(_why(sys.exception()))
            context.detach(self._before)
        except Exception:
            _log.exception("a turn's trace could not be ended")

    def _tell(self, update: Update) -> None:
        try:
            self._note(update)
        except Exception:
            _log.exception("an update could not be traced, and the turn goes on")
        self._inner(update)

    def _note(self, update: Update) -> None:
        match update:
            case TurnStarted(id=id, resumed=resumed):
                self._span.set_attributes({"forkpoint.turn.id": id, "forkpoint.turn.resumed": resumed})
            case Restarted(error=error):
                self._restarts.append((time.time_ns(), error))
            case Answered(called=called):
                self._answered(called)
            case CallStarted(call=call):
                self._started(call)
            case CallEnded(result=result):
                self._ended(result)
            case Turn():
                self._told(update)
            case _:
                pass  # a piece of an answer, or how far a tool is

    def _answered(self, called: ModelCalled) -> None:
        from opentelemetry.trace import SpanKind

        now = time.time_ns()
        span = self._tracer.start_span(
            _named("chat", _model(called.model)),
            self._inside,
            SpanKind.CLIENT,
            self._chat_attributes(called),
            start_time=now - int(called.duration * 1e9),
        )
        for moment, error in self._restarts:
            span.add_event("forkpoint.restarted", {"error.type": error}, moment)
        self._restarts.clear()
        self._used += called.usage
        _end(span, called.error, now)

    def _started(self, call: ToolCall) -> None:
        from opentelemetry import context, trace

        if (again := self._tools.pop(call.call_id, None)) is not None:  # it has no end that anybody was told of
            _end(again[0], "unknown")
        known = PLAIN_NAME.fullmatch(call.tool) is not None  # other names are made up by a model: no tool has one
        attributes = {
            **self._common,
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": call.call_id[:128],
        }
        if known:
            attributes["gen_ai.tool.name"] = call.tool
        name = _named("execute_tool", call.tool if known else None)
        span = self._tracer.start_span(name, self._inside, attributes=attributes)
        # Started and ended are told in the task that runs the tool, so this is current there and nowhere else.
        self._tools[call.call_id] = span, context.attach(trace.set_span_in_context(span, self._inside))

    def _ended(self, result: ToolResult) -> None:
        from opentelemetry import context

        if (found := self._tools.pop(result.call_id, None)) is not None:
            span, before = found
            _end(span, result.status if result.error else None)
            context.detach(before)

    def _told(self, turn: Turn) -> None:
        self._span.set_attribute("forkpoint.turn.outcome", turn.outcome)
        if turn.outcome in ("committed", "awaiting_approval"):
            self._end(None)
        else:  # a cancelled one too: nobody has what was asked for
            self._end(turn.error.code if turn.error is not None else turn.outcome)

    def _end(self, error: str | None) -> None:
        self._is_told = True
        for span, _ in self._tools.values():
            _end(span, "unknown")  # started, and whether it finished is not known
        self._tools.clear()
        if self._span.is_recording():
            self._span.set_attributes(_usage_attributes(self._used))
        _end(self._span, error)

    def _turn_attributes(self, agent: Agent) -> Attributes:
        named = {} if agent.name is None else {"gen_ai.agent.name": agent.name}
        return {
            **self._common,
            **named,
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.provider.name": agent.llm.served_by,
            "gen_ai.request.model": _model(agent.llm.model),
        }

    def _chat_attributes(self, called: ModelCalled) -> Attributes:
        attributes = {
            **self._common,
            **_usage_attributes(called.usage),
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": called.provider.rpartition("/")[0] or called.provider,
            "gen_ai.request.model": _model(called.model),
            "forkpoint.attempts": called.attempts,
        }
        if called.finish is not None:
            attributes["gen_ai.response.finish_reasons"] = (called.finish,)
        if called.response_id is not None:
            attributes["gen_ai.response.id"] = called.response_id
        if called.first_token is not None:
            attributes["gen_ai.response.time_to_first_chunk"] = called.first_token
        return attributes


def _usage_attributes(usage: Usage) -> Attributes:
    return {
        "gen_ai.usage.input_tokens": usage.input,  # cached and written ones included, as the conventions say
        "gen_ai.usage.output_tokens": usage.output,
        "gen_ai.usage.cache_read.input_tokens": usage.cached,
        "gen_ai.usage.cache_creation.input_tokens": usage.written,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning,
    }


def _named(operation: str, what: str | None) -> str:
    return operation if what is None else f"{operation} {what}"


def _model(model: str) -> str:
    """A model's name as its provider knows it."""
    return model.partition("/")[2]


def _why(error: BaseException | None) -> str:
    """What a turn that told no end ended with."""
    if isinstance(error, ForkpointError):
        return error.code
    return "error" if error is None or isinstance(error, Exception) else "cancelled"


def _end(span: "Span", error: str | None, time: int | None = None) -> None:
    if error is not None:
        from opentelemetry.trace import StatusCode

        span.set_attribute("error.type", error)
        span.set_status(StatusCode.ERROR)
    span.end(time)
