"""Metrics: what the server has done and how long it took, for Prometheus.

Each server has a registry of its own. Every label has a bounded number of values, whatever clients send: a route is a
template and never a path, and what is not known is ``other``. No name of a conversation, tenant, model or tool is one.
"""

import logging
import platform
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Literal, TypeAlias, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.exposition import choose_encoder
from prometheus_client.gc_collector import GCCollector
from prometheus_client.process_collector import ProcessCollector

from forkpoint.backend.callbacks import Callback, Update
from forkpoint.backend.results import Turn
from forkpoint.events import ModelCalled, Usage
from forkpoint.store import Collected
from forkpoint.updates import Answered, CallEnded, CallStarted, TurnStarted
from forkpoint.version import __version__

Done: TypeAlias = Literal["taken_over", "given_up", "cancelled"]
"""What a server may do about a turn whose process is gone."""

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
VALUES = 200
"""How many values a label takes that only the code bounds. What comes then is ``other``: a mistake costs no memory."""

LONG = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)  # what waits for models and tools
SHORT = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)  # what is done here

_log = logging.getLogger("forkpoint.server")


class Metrics:
    """What one server counts."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        GCCollector(registry=registry)
        Info("forkpoint_build", "What runs here.", registry=registry).info(
            {"version": __version__, "python": platform.python_version()}
        )

        def counter(name: str, help: str, *labels: str) -> Counter:
            return Counter(f"forkpoint_{name}", help, labels, registry=registry)

        def histogram(name: str, help: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"forkpoint_{name}_seconds", help, labels, registry=registry, buckets=buckets)

        def gauge(name: str, help: str, *labels: str) -> Gauge:
            return Gauge(f"forkpoint_{name}", help, labels, registry=registry)

        self._requests = counter("requests", "HTTP requests that were answered.", "method", "route", "status")
        self._request_seconds = histogram("request", "From request to the end of its answer.", LONG, "method", "route")
        self._refused = counter("refused_requests", "Requests refused before any work was done.", "reason")

        self._turns = counter("turns", "Turns that ended here, or wait for an approval.", "outcome")
        self._turn_seconds = histogram("turn", "From the begin of a turn to its end.", LONG)
        self._own_seconds = histogram("turn_own", "The part of a turn that no model and no tool took.", SHORT)
        self._running = gauge("turns_running", "Turns that run now.")
        self._orphans = counter("orphaned_turns", "Turns of processes that died or left, by what was done.", "done")

        self._calls = counter("model_calls", "Calls of models, by how they finished or failed.", "outcome")
        self._retries = counter("model_retries", "Attempts at calls of models beyond the first.")
        self._call_seconds = histogram("model_call", "Calls of models, with all attempts.", LONG)
        self._first_seconds = histogram("model_first_token", "Until the first piece of an answer.", LONG)
        self._tools = counter("tool_calls", "Tool calls that were run, by what they came to.", "status")
        self._tokens = counter("tokens", "Tokens: cached, written and fresh ones of prompts; all of answers.", "kind")
        self._reasoning = counter("reasoning_tokens", "The part of output tokens that was reasoning.")
        self._dollars = counter("dollars", "What calls of models cost, where the price is known.")
        self._unpriced = counter("unpriced_calls", "Calls of models whose price is not known.")

        self._streams = gauge("streams_open", "Event streams that are open now.")
        self._gaps = counter("stream_gaps", "Times that a slow reader missed provisional updates.")
        self._store = histogram("store", "Operations of the store.", SHORT, "operation")

        self._away = gauge("store_away", "1 while requests are refused since the store does not answer.", "kind")

        self._anchored = gauge("last_anchor_time_seconds", "When all witnesses had the newest anchor; 0 if never.")
        self._unwitnessed = counter("anchor_failures", "Anchors that a witness could not be given.", "witness")
        self._collected = counter("collected_bytes", "Bytes of events that were removed from the disk.")
        self._pending = gauge("collection_pending", "1 while removed text is not gone from the disk yet, else 0.")

        self._seen: dict[str, set[str]] = {}
        self._operations: dict[str, Histogram] = {}
        # Made here and not when they are first needed: a rate needs the zero that was before.
        self._kinds = [self._tokens.labels(kind) for kind in ("cached", "written", "fresh", "output")]
        for kind in ("reads", "writes"):
            self._away.labels(kind)
        for witness in ("log", "command"):
            self._unwitnessed.labels(witness)
        for outcome in ("committed", "failed", "cancelled", "awaiting_approval", "interrupted", "unknown"):
            self._turns.labels(outcome)
        for done in get_args(Done):
            self._orphans.labels(done)

    def render(self, accept: str | None = None) -> tuple[bytes, str]:
        """All of it in the form that an ``Accept`` header asks for, and that form's content type."""
        try:
            encode, content_type = choose_encoder(accept or "")
            return encode(self._registry), content_type
        except Exception:  # a header that cannot be read is ignored
            encode, content_type = choose_encoder("")
            return encode(self._registry), content_type

    # Requests.

    def request(self, method: str, route: str | None, status: int, seconds: float) -> None:
        """A request was answered. ``route`` is the template that it matched, None if it matched none."""
        method = method if method in METHODS else "other"
        route = "other" if route is None else self._bounded("route", route)
        self._requests.labels(method, route, str(status) if 100 <= status <= 599 else "other").inc()
        self._request_seconds.labels(method, route).observe(max(seconds, 0.0))

    def refused(self, reason: str) -> None:
        """A request was refused before any work was done. The reason is a word: turns, streams, or an error's code."""
        self._refused.labels(self._bounded("reason", reason)).inc()

    # Turns.

    @contextmanager
    def turn(self, tell: Callback) -> Generator[Callback]:
        """A callback for one turn, which counts each update and passes it on.

        ``with metrics.turn(tell) as tell: await backend.turns.run(..., tell=tell)``. A turn that is only joined gives
        no updates, and is not counted again. A turn whose end only the disk knows counts as `unknown`.
        """
        watch = _Watch(self, tell)
        try:
            yield watch
        finally:
            watch.end(None)

    def orphan(self, done: Done) -> None:
        """Something was done about a turn whose process is gone."""
        self._orphans.labels(done).inc()

    def used(self, usage: Usage) -> None:
        """Counts what a model used outside a turn. `turn` counts what is used inside."""
        fresh = usage.input - usage.cached - usage.written
        for tokens, used in zip(self._kinds, (usage.cached, usage.written, fresh, usage.output), strict=True):
            tokens.inc(max(used, 0))
        self._reasoning.inc(max(usage.reasoning, 0))
        self._dollars.inc(max(usage.nanodollars, 0) / 1e9)
        self._unpriced.inc(max(usage.unpriced, 0))

    # Streams and the store.

    @contextmanager
    def stream(self) -> Generator[None]:
        """An event stream is open."""
        self._streams.inc()
        try:
            yield
        finally:
            self._streams.dec()

    def gap(self) -> None:
        """Counts a reader that was too slow."""
        self._gaps.inc()

    def store(self, operation: str, seconds: float) -> None:
        """The store did something. For `timed`."""
        if (found := self._operations.get(operation)) is None:
            found = self._operations[operation] = self._store.labels(self._bounded("operation", operation))
        found.observe(seconds)

    def circuit(self, kind: str, is_open: bool) -> None:
        """A circuit of the store has opened or closed. For `Breaker`."""
        self._away.labels(kind).set(is_open)

    def anchored(self) -> None:
        """All witnesses have the newest anchor."""
        self._anchored.set_to_current_time()

    def unwitnessed(self, witness: str) -> None:
        """Counts an anchor that a witness could not be given."""
        self._unwitnessed.labels(witness).inc()

    def collected(self, done: Collected) -> None:
        """A collection has ended."""
        self._collected.inc(done.payload_bytes)
        self._pending.set(bool(done.pending))

    # What a turn tells.

    def _started(self) -> None:
        self._running.inc()

    def _answered(self, called: ModelCalled) -> None:
        self._calls.labels(self._bounded("call", called.error or called.finish or "error")).inc()
        self._retries.inc(max(called.attempts - 1, 0))
        self._call_seconds.observe(called.duration)
        if called.first_token is not None:
            self._first_seconds.observe(called.first_token)
        self.used(called.usage)

    def _ran(self, status: str) -> None:
        self._tools.labels(status).inc()

    def _ended(self, outcome: str, seconds: float, own: float) -> None:
        self._running.dec()
        self._turns.labels(outcome).inc()
        self._turn_seconds.observe(seconds)
        self._own_seconds.observe(max(own, 0.0))

    def _bounded(self, label: str, value: str) -> str:
        seen = self._seen.setdefault(label, set())
        if value in seen:
            return value
        if len(seen) >= VALUES:
            return "other"
        seen.add(value)
        return value


class _Watch:
    """The updates of one turn, and the part of its time that models and tools took."""

    def __init__(self, metrics: Metrics, tell: Callback, clock: Callable[[], float] = time.perf_counter) -> None:
        self._metrics = metrics
        self._tell = tell
        self._clock = clock
        self._started: float | None = None
        self._elsewhere: list[tuple[float, float]] = []  # from when to when a model or a tool was at work
        self._tools: dict[str, float] = {}  # those that run, since when

    def __call__(self, update: Update) -> None:
        try:
            if type(update) in _COUNTED:  # most are pieces of answers
                self._note(update)
        except Exception:
            _log.exception("an update could not be counted, and the turn goes on")
        self._tell(update)

    def _note(self, update: Update) -> None:
        match update:
            case TurnStarted():
                self._started = self._clock()
                self._metrics._started()
            case Answered(called=called):
                now = self._clock()
                self._elsewhere.append((now - called.duration, now))
                self._metrics._answered(called)
            case CallStarted(call=call):
                self._tools[call.call_id] = self._clock()
            case CallEnded(result=result):
                # By its own measure: that its result was then written to disk is not the tool's time.
                started = self._tools.pop(result.call_id, None)
                if started is not None and result.duration is not None:
                    self._elsewhere.append((started, started + result.duration))
                self._metrics._ran(result.status)
            case Turn():
                self.end(update)
            case _:
                pass

    def end(self, turn: Turn | None) -> None:
        if self._started is None:
            return
        now, started = self._clock(), self._started
        self._started = None
        self._elsewhere += [(since, now) for since in self._tools.values()]
        outcome = "unknown" if turn is None else turn.outcome
        self._metrics._ended(outcome, now - started, now - started - _covered(self._elsewhere, started, now))


_COUNTED = {TurnStarted, Answered, CallStarted, CallEnded, Turn}


def _covered(spans: list[tuple[float, float]], start: float, end: float) -> float:
    """How much of the time between start and end lies in any of the spans: tools run side by side."""
    total, until = 0.0, start
    for since, to in sorted(spans):
        since, to = max(since, until), min(to, end)
        if to > since:
            total += to - since
            until = to
    return total
