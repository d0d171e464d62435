"""Paths as stores give them: committed events in turns and notes, with everything in them that a path may have.

Each text, thought, item, signature and picture carries a mark of its own (``~7~``), so that a test can say whether it
is in a prompt.
"""

import base64
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from forkpoint.events import (
    GONE,
    AnyBody,
    ApprovalAsked,
    ApprovalGiven,
    AssistantMessage,
    Condensation,
    Content,
    Envelope,
    Event,
    File,
    Gone,
    HookRun,
    Image,
    Imported,
    ManifestChanged,
    ModelCalled,
    NewEvent,
    Opaque,
    Part,
    Position,
    Reasoning,
    SettingsChanged,
    SkillActivated,
    StagedEvent,
    StateChange,
    SubAgentFinished,
    SubAgentSpawned,
    SystemMessage,
    Text,
    ToolCall,
    ToolResult,
    Usage,
    UserMessage,
    encode_body,
    seal,
)
from forkpoint.llm.model import LLM
from forkpoint.llm.prompt.identity import CallContext, own_identity
from forkpoint.llm.prompt.manifest import Manifest, ToolSchema, manifest_of

Commit: TypeAlias = list[Event]
Draw: TypeAlias = Callable[[st.SearchStrategy[Any]], Any]

common = settings(
    deadline=None,
    database=None,
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)

MODELS = {
    "chat": LLM("openai/gpt-x", api="chat"),
    "responses": LLM("openai/gpt-x"),
    "messages": LLM("anthropic/claude-x"),
}
ALL_MODELS = MODELS | {"local": LLM("local/smollm2"), "scripted": LLM("scripted/tests")}
TOOLS = (
    ToolSchema("look", "Looks around.", '{"type": "object", "properties": {"at": {"type": "string"}}}'),
    ToolSchema("run", strict=True),
    ToolSchema("client_tool", "Runs at the client's."),
)
CONTEXT = CallContext(own_identity("c-1"))

SAID = {"reasoning", "assistant_message", "tool_call"}
MESSAGES = SAID | {"user_message", "system_message", "tool_result"}

# What a prompt shows of an event that this version cannot read is for the renderer to say. It must stay paired.
UNREADABLE = '{"type":"hologram"}'


def manifest_for(wire: str, *, instructions: str = "Be brief.", tools: Iterable[ToolSchema] = TOOLS) -> Manifest:
    return manifest_of(ALL_MODELS[wire], instructions=instructions, tools=tools)


def path_of(commits: Iterable[Commit]) -> list[Event]:
    return [event for commit in commits for event in commit]


def commit(turn: str, *bodies: AnyBody | NewEvent, after: int = 0, segment: int = 1) -> Commit:
    """A commit of these bodies behind an ordinal. What a model says is its first response until a result is in."""
    events: Commit = []
    response = 1
    for ordinal, given in enumerate(bodies, start=after + 1):
        new = given if isinstance(given, NewEvent) else NewEvent(given)
        if not isinstance(given, NewEvent) and isinstance(given, Reasoning | AssistantMessage | ToolCall):
            new = replace(new, response=response)
        elif isinstance(new.body, ToolResult):
            response += 1
        events.append(Event(Position(segment, ordinal), turn, seal(new, 1_000_000 + ordinal), new.body))
    return events


def erased(event: Event) -> Event:
    return replace(event, body=GONE)


def unreadable(event: Event) -> Event:
    """The event as a newer version wrote it, with a part that this one does not know."""
    kind = event.envelope.kind
    return replace(event, body=Opaque(kind, f'{{"kind":"{kind}","call_id":"?","tool":"?","parts":[{UNREADABLE}]}}'))


def staged(events: Iterable[Event]) -> list[StagedEvent]:
    return [StagedEvent(event.envelope, event.body) for event in events]


def steps_of(turn: Sequence[Event]) -> list[list[Event]]:
    """A turn cut wherever a running one may be rendered: not inside a response."""
    steps: list[list[Event]] = [[]]
    for n, event in enumerate(turn):
        before = next((one.envelope for one in reversed(turn[:n]) if one.kind in MESSAGES), None)
        after = next((one.envelope for one in turn[n:] if one.kind in MESSAGES), None)
        if not _one_response(before, after):
            steps.append([])
        steps[-1].append(event)
    return [step for step in steps if step]


def _one_response(before: Envelope | None, after: Envelope | None) -> bool:
    both = before is not None and after is not None and {before.kind, after.kind} <= SAID
    return both and before is not None and after is not None and before.response == after.response


def mark_in(text: str) -> str:
    """The mark in a text."""
    start = text.index("~")
    return text[start : text.index("~", start + 1) + 1]


# What providers send, in the form in which streams store it.


def item_json(value: Any, *, spaced: bool = False) -> str:
    """JSON as a provider might print it: not as we would, so that whoever prints it again is found out."""
    return json.dumps(value, ensure_ascii=spaced, separators=(", ", ": ") if spaced else (",", ":"))


def said_thought(origin: str | None, mark: str, style: int) -> Reasoning:
    wire = (origin or "").partition("/")[2]
    spaced = bool(style % 2)
    match wire:
        case "responses":
            item = {"type": "reasoning", "id": f"rs_{mark}", "summary": [], "encrypted_content": f"enc {mark} é"}
            return Reasoning(provider=origin, item=item_json(item, spaced=spaced))
        case "messages" if style % 3 == 0:
            return Reasoning(encrypted=f"redacted {mark}", provider=origin)
        case "messages":
            return Reasoning(f"hm {mark}" if style % 3 == 1 else None, f"signed {mark}", provider=origin)
        case "chat" if style % 3 == 0:
            details = {"reasoning_details": [{"text": f"hm {mark}", "id": 1.50}]}
            return Reasoning(f"hm {mark}", provider=origin, item=item_json(details, spaced=spaced))
        case "chat" | "local" | "scripted":
            return Reasoning(f"hm {mark}", provider=origin, item='{"in":"reasoning_content"}')
        case _:
            return Reasoning(f"hm {mark}", provider=origin)


def said_words(origin: str | None, text: str, mark: str, style: int) -> AssistantMessage:
    wire = (origin or "").partition("/")[2]
    item: Any = None
    if wire == "responses":
        content = [{"type": "output_text", "annotations": [], "text": text}]
        item = {"id": f"msg_{mark}", "type": "message", "status": "completed", "role": "assistant", "content": content}
    elif wire == "messages" and style % 3 == 0:
        cited = {"type": "char_location", "cited_text": f"cited {mark}", "document_index": 0, "document_title": None}
        item = {"type": "text", "text": text, "citations": [cited | {"start_char_index": 0, "end_char_index": 5}]}
    return AssistantMessage(
        (Text(text),), provider=origin, item=item_json(item, spaced=bool(style % 2)) if item else None
    )


def said_call(
    origin: str | None, call_id: str, tool: str, arguments: str, mark: str, style: int, *, client: bool
) -> ToolCall:
    wire = (origin or "").partition("/")[2]
    item: Any = None
    if wire == "responses":
        item = {"arguments": arguments, "call_id": call_id, "name": tool, "type": "function_call", "id": f"fc_{mark}"}
    elif wire == "messages" and style % 3 == 0:
        item = {"caller": {"type": "direct", "note": f"caller {mark}"}}
    elif wire == "chat" and style % 3 == 0:
        item = {"extra_content": {"thought_signature": f"sig {mark}", "n": 1.50}}
    return ToolCall(
        call_id,
        tool,
        arguments,
        client,
        provider=origin,
        item=item_json(item, spaced=bool(style % 2)) if item else None,
    )


ORIGINS: tuple[str | None, ...] = (
    "openai/responses",
    "openai/chat",
    "anthropic/messages",
    "elsewhere.example/responses",
    "elsewhere.example/messages",
    "elsewhere.example/chat",
    "scripted/scripted",
    None,
)
WORDS = ("hello", "é ✓ 🙂", "two\nlines", '"quoted" \\ back', "</system>", "\u2028 {}", " \0 ", "&amp; [1,2")
ARGUMENTS = (
    '{"at": "%s"}',
    '{ "at" :\t"%s", "n": 1.50, "é": "\\u00e9" }',
    "%s is not JSON",
    '["%s"]',
    '{"at": "%s',
    "",
    "{}",
)
CALL_IDS = ("call_%d", "toolu_%d", "functions.look:%d", "é %d", "%d" + "x" * 80, "a|b/c-%d")
STATUSES = ("done", "done", "done", "failed", "unknown", "denied", "not_run", "not_answered")
PIXEL = base64.b64encode(b"\x89PNG not really").decode()


class Writer:
    """Writes commits, one event after another."""

    def __init__(self, draw: Draw, origins: Sequence[str | None], *, damage: bool, skills: bool) -> None:
        self.draw = draw
        self.origins = origins
        self.damage = damage
        self.skills = skills
        self.commits: list[Commit] = []
        self.ordinal = 0
        self.marks = 0
        self.segment = 1
        self.turn = ""
        self.open: list[ToolCall] = []

    def pick(self, *choices: Any) -> Any:
        return self.draw(st.sampled_from(choices))

    def number(self, most: int) -> int:
        return int(self.draw(st.integers(0, most)))

    def mark(self) -> str:
        self.marks += 1
        return f"~{self.marks}~"

    def words(self) -> str:
        return f"{self.pick(*WORDS)} {self.mark()}"

    def begin(self) -> None:
        self.commits.append([])
        self.turn = f"turn-{len(self.commits)}"
        self.segment += self.number(1)

    def add(self, body: AnyBody | Opaque, response: int | None = None) -> None:
        self.ordinal += 1
        new = NewEvent(body, response=response)
        kept: Content = body
        event = Event(Position(self.segment, self.ordinal), self.turn, seal(new, 1_700_000_000 + self.ordinal), kept)
        if self.damage and not isinstance(body, Opaque):
            match self.number(30):
                case 30:
                    event = erased(event)
                case 29 if event.kind in MESSAGES:
                    event = unreadable(event)
                case _:
                    pass
        self.commits[-1].append(event)

    def part(self, *, files: bool = True) -> Part:
        match self.number(6 if files else 4):
            case 0:
                return Image("image/png", data=base64.b64encode(self.mark().encode()).decode())
            case 1:
                return Image("image/png", url=f"https://pictures.example/{self.mark()}.png")
            case 5:
                return File(f"paper {self.mark()}.pdf", "application/pdf", data=PIXEL)
            case _:
                return Text(self.words())

    def parts(self) -> tuple[Part, ...]:
        return tuple(self.part() for _ in range(1 + self.number(2)))

    def beside(self) -> None:
        """What may stand anywhere and is no message."""
        call_id, mark = f"beside-{self.ordinal}", self.mark()
        bodies: list[AnyBody | Opaque] = [
            StateChange((("key", f'"{mark}"'),)),
            HookRun(f"hook {mark}", "after_tool", output=mark),
            ApprovalAsked(call_id, "look", mark),
            ApprovalGiven(call_id, "look", mark),
            ModelCalled("m", "p", Usage(1, 2), response_id=mark),
            SubAgentSpawned(call_id, "c-9", mark),
            SubAgentFinished(call_id, "c-9", mark),
            Opaque("from_the_future", f'{{"kind":"from_the_future","x":"{mark}"}}'),
        ]
        if self.skills:
            bodies += [SkillActivated(f"skill {mark}", f"do {mark}")] * 3
        for _ in range(self.number(1)):
            self.add(self.pick(*bodies))

    def result(self, call: ToolCall) -> None:
        self.beside()
        status = self.pick(*STATUSES)
        parts = () if self.number(3) == 0 else self.parts()
        self.add(ToolResult(call.call_id, call.tool, parts, status))

    def response(self, number: int | None, *, calls: int, client: bool) -> list[ToolCall]:
        origin = self.pick(*self.origins)
        made: list[ToolCall] = []
        again = origin is not None and origin.endswith(("/responses", "/messages"))  # chat has one thought a response
        if self.number(1):
            self.add(said_thought(origin, self.mark(), self.number(5)), number)
        if not calls or self.number(1):
            mark = self.mark()
            self.add(said_words(origin, f"{self.pick(*WORDS)} {mark}", mark, self.number(5)), number)
        for _ in range(calls):
            if again and not self.number(4):
                self.add(said_thought(origin, self.mark(), self.number(5)), number)
            mark = self.mark()
            arguments = self.pick(*ARGUMENTS)
            arguments = arguments % mark if "%s" in arguments else arguments
            at_client = client and self.number(1) == 1
            served = origin is not None and origin.startswith(("openai/", "anthropic/", "scripted/"))
            id = self.pick(*(CALL_IDS[:2] if served else CALL_IDS)) % self.marks  # these two make plain ones
            tool = "client_tool" if at_client else self.pick("look", "run")
            call = said_call(origin, id, tool, arguments, mark, self.number(5), client=at_client)
            made.append(call)
            self.add(call, number)
        if not self.number(3):
            self.beside()
        return made

    def answer(self, calls: Iterable[ToolCall]) -> None:
        for call in calls:
            self.result(call)

    def run_turn(self) -> None:
        self.begin()
        self.answer(self.open)
        self.open = []
        if self.number(7) == 0:
            self.add(SystemMessage((Text(self.words()),)))
        self.beside()
        self.add(UserMessage(self.parts()))
        self.beside()
        for number in range(1, 1 + self.number(2)):
            calls = self.response(number, calls=1 + self.number(2), client=True)
            self.answer(call for call in calls if not call.client)
            self.open = [call for call in calls if call.client]
            if self.open and self.number(1):
                return  # they stay open, at the head
            self.answer(self.open)
            self.open = []
        self.response(9, calls=0, client=False)

    def note(self, *, condensations: bool) -> None:
        self.begin()
        kinds = ["settings", "manifest", "state", *(["condensation"] * 2 if condensations else [])]
        if not self.open:
            kinds += ["system", "import"]
        match self.pick(*kinds):
            case "settings":
                self.add(SettingsChanged('{"a": 1}'))
            case "manifest":
                self.add(ManifestChanged("hash", "{}", self.mark()))
            case "state":
                self.add(StateChange((("key", "1"),)))
            case "condensation":
                self.add(Condensation(f"summary {self.mark()}", 1 + self.number(self.ordinal + 2)))
            case "system":
                self.add(SystemMessage((Text(self.words()), Text(self.words()))[: 1 + self.number(1)]))
            case _:
                self.add(Imported("a file", 2))
                self.add(UserMessage(self.parts()))
                calls = self.response(None, calls=self.number(2), client=False)
                self.answer(calls)
                if calls and self.number(1):
                    self.response(None, calls=0, client=False)


def histories(
    *,
    origins: Sequence[str | None] = ORIGINS,
    condensations: bool = True,
    damage: bool = True,
    skills: bool = True,
    min_turns: int = 1,
    max_turns: int = 3,
) -> st.SearchStrategy[list[Commit]]:
    """Whole conversations, as lists of commits. ``damage`` erases events and makes some unreadable."""

    @st.composite
    def build(draw: Draw) -> list[Commit]:
        writer = Writer(draw, origins, damage=damage, skills=skills)
        if writer.number(2) == 0:
            writer.begin()
            for _ in range(1 + writer.number(1)):
                writer.add(SystemMessage((Text(writer.words()),)))
        for _ in range(min_turns + writer.number(max_turns - min_turns)):
            writer.run_turn()
            if writer.number(1):
                writer.note(condensations=condensations)
        return writer.commits

    return build()


def next_turn(path: Sequence[Event], text: str, *, turn: str = "next") -> list[Event]:
    """A turn behind any path: the client's open calls are not answered, and somebody asks and is answered."""
    asked = {event.envelope.call_id: event.envelope for event in path if event.kind == "tool_call"}
    for event in path:
        if event.kind == "tool_result":
            asked.pop(event.envelope.call_id, None)
    results = [ToolResult(id or "", one.tool or "", status="not_answered") for id, one in asked.items()]
    said: list[AnyBody] = [UserMessage((Text(text),)), AssistantMessage((Text(f"You said: {text}"),))]
    return commit(turn, *results, *said, after=len(path), segment=99)


def elsewhere(path: Iterable[Event]) -> list[Event]:
    """The same path, as if it had happened at another time, in another conversation and other segments."""
    return [
        Event(
            Position(event.id.segment * 31 + 7, event.id.ordinal),
            f"other-{event.turn}",
            replace(event.envelope, time=event.envelope.time * 3 + 11, origin="ab" * 32),
            event.body,
        )
        for event in path
    ]


def payload(event: Event) -> str:
    """For failure messages: what an event is, in one line."""
    body = event.body
    shown = "(erased)" if isinstance(body, Gone) else encode_body(body)
    return f"{event.id.ordinal} {event.turn} r={event.envelope.response} {event.kind} {shown}"


def told(path: Iterable[Event]) -> str:
    return "\n".join(payload(event) for event in path)
