"""Errors of a caller who asked for something that does not fit. Tests: tests/test_errors.py."""

from typing import Any

from forkpoint.errors.error import ForkpointError, Surface
from forkpoint.errors.form import form

_ANYWHERE = "Check its name or id, and the store that --store or FORKPOINT_STORE names."

_WHERE = {  # what can be named at a command line: the command that shows which there are
    "backup": "Check the path of the file.",
    "committed turn": "Use `forkpoint show CONVERSATION --turns` to see which there are, and which of them committed.",
    "conversation": "Check its name with `forkpoint list --all`, and the store that --store or FORKPOINT_STORE names.",
    "event": "Use `forkpoint show CONVERSATION --events` to see which there are.",
    "hold": "Use `forkpoint hold --list` to see which there are.",
    "skill": "Use `forkpoint skills` to see which there are.",
    "standing approval": "Use `forkpoint approvals CONVERSATION` to see which there are.",
    "store": "Check the path or address that --store or FORKPOINT_STORE names; `forkpoint doctor` shows what is used.",
    "turn": "Use `forkpoint show CONVERSATION --turns` to see which there are.",
}


class NotFound(ForkpointError, code="not_found"):
    """There is no {what} {id!r} here.

    Check the id, the tenant and the store's address; it may also have been deleted.

    Command line: {where}

    Chat: Check the name; it may also have been deleted.
    """

    what: str
    id: str

    def _words(self, surface: Surface | None) -> dict[str, Any]:
        return {**vars(self), "where": _WHERE.get(self.what, _ANYWHERE)}

    @form
    def model_not_found(self, model: str) -> None:
        """There is no model {model!r} here.

        Use one of those that GET /v1/models lists.
        """
        self.what, self.id = "model", model

    @form
    def previous_response_not_found(self, id: str) -> None:
        """There is no response {id!r} here that has ended, so nothing can go on from it.

        Name a stored response that is completed or incomplete. A response with store: false is not stored.
        """
        self.what, self.id = "response", id

    @form
    def no_such_agent(self, agent: str, conversation: str, known: str) -> None:
        """There is no sub-agent {agent} of conversation {conversation}.

        Name one of these: {known}.
        """
        self.what, self.id = "sub-agent", agent

    @form
    def no_such_call(self, method: str, path: str) -> None:
        """There is no call {method} {path} here.

        Read /openapi.json for all there are.
        """
        self.what, self.id = "call", f"{method} {path}"

    @form
    def method_not_allowed(self, method: str, path: str) -> None:
        """{path} cannot be called with {method}.

        Read /openapi.json for how it can.
        """
        self.what, self.id = "call", f"{method} {path}"

    @form
    def none_named(self, what: str, name: str, known: str) -> None:
        """There is no {what} {name!r} here.

        Name one of these: {known}.
        """
        self.id = name

    @form
    def no_such_key(self, given: str, path: str) -> None:
        """There is no key {given!r} in {path}.

        Check it with `forkpoint keys list`.

        HTTP: Tell whoever runs the server.

        Chat: Tell whoever runs the server.
        """
        self.what, self.id = "key", given


class AlreadyExists(ForkpointError, code="exists"):
    """A {what} {name!r} exists already, and nothing was changed.

    Choose another name or id, or open the one that exists.

    Chat: Choose another name, or leave X-Fork-From out to go on with the conversation that exists.
    """

    what: str
    name: str


class BadName(ForkpointError, code="bad_name"):
    """{name!r} cannot be the {what}: {why}.

    Choose another name.
    """

    what: str
    name: str
    why: str

    @form
    def bad_id(self, what: str, id: str) -> None:
        """{id!r} cannot be the id of a {what}.

        Leave it out, so that Forkpoint makes one, or use a UUID.

        Python: Make one with forkpoint.ids.new_id().
        """
        self.name, self.why = id, "it is no id"

    @form
    def ambiguous(self, given: str, count: int, some: str) -> None:
        """{given!r} is the start of {count} ids, among them {some}.

        Name the one that you mean with more of its id.
        """
        self.what, self.name, self.why = "id", given, f"{count} ids begin with it"

    @form
    def bad_cursor(self, cursor: str) -> None:
        """{cursor!r} is not a cursor of this list.

        Pass `next` of an earlier page, unchanged, or none at all.

        Command line: Use the cursor that the page before has printed, with the same options, or leave --cursor out.
        """
        self.what, self.name, self.why = "cursor", cursor, "it is not of this list"


class BadPosition(ForkpointError, code="bad_position"):
    """{position} is not a place to fork at or rewind to: {why}.

    {instead}
    """

    position: str
    why: str
    nearest: tuple[str, ...] = ()  # ids of events that are safe places
    use: str = ""  # what to name, where no event is near; or what is safe besides these events

    def _words(self, surface: Surface | None) -> dict[str, Any]:
        named = " and ".join([*([self.use] if self.use else []), *self.nearest])
        instead = f"The nearest safe positions: {named}." if self.nearest else f"Use {named or 'another one'}."
        return {**vars(self), "instead": instead}


class BadStoreUrl(ForkpointError, code="bad_store_url"):
    """{url!r} is not a store's address: {why}.

    Use the path of a file (./file.db), sqlite:///relative/file.db, sqlite:////absolute/file.db, memory:,
    postgresql://user@host/database or http://host:8008
    """

    url: str
    why: str


class TooLarge(ForkpointError, code="too_large"):
    """The {what} has {size:,} {unit}; the limit is {limit:,}.

    Make it smaller, or raise the limit where it is set.

    Chat: Make it smaller.
    """

    what: str
    size: int
    limit: int
    unit: str = "bytes"


class BadFile(ForkpointError, code="bad_file"):
    """The file {path!r} cannot be part of a message: {why}.

    Name a picture (PNG, JPEG, GIF or WebP), a PDF document, or a text in UTF-8.
    """

    path: str
    why: str


class BadMessages(ForkpointError, code="bad_messages"):
    """Message {index} of the list, counted from 0, cannot become history, so nothing did: {why} ({place}).

    Mend that message, or leave it out, and try again.
    """

    place: str
    why: str
    index: int  # of the message in its list, from 0


class NotWhole(ForkpointError, code="not_whole"):
    """The {kind} cannot be stored: {why}.

    Leave it out, or make it whole: a conversation that holds it could not go on.
    """

    kind: str
    why: str


class Unpaired(ForkpointError, code="unpaired"):
    """Tool calls and results do not pair up: {why}.

    Each call needs exactly one result, in order, before the conversation goes on.
    """

    why: str
    call_id: str

    @form
    def call_not_open(self, call: str, conversation: str, why: str) -> None:
        """Call {call!r} is not open in conversation {conversation}, so nothing was done with its result: {why}.

        Only calls that the last turn handed to the client can be answered, each once.
        """
        self.call_id = call


class KeyReused(ForkpointError, code="key_reused"):
    """The idempotency key {key!r} was used before for another request.

    Use a fresh key for each request, and the same key only to repeat one.
    """

    key: str


class BadArgument(ForkpointError, code="bad_argument"):
    """{call} cannot do anything with {argument}: {why}.

    Pass another, or leave it out.
    """

    call: str
    argument: str
    why: str

    @form
    def bad_lineage(self, kind: str, why: str) -> None:
        """A conversation cannot be created as a {kind} ({why}).

        Create a root, or a sub_agent with its parent and, if a call asked for it, the parent's turn and the call.

        Python: Create a root, or a sub_agent with its parent and, if a call asked for it, the parent's turn and the
        call; use fork() and rewind() for what they make.
        """
        self.call, self.argument = "create()", kind


class NothingToRun(ForkpointError, code="nothing_to_run"):
    """There is {what} in conversation {conversation}{why}.

    Send a message.

    Python: Pass a message to run(){instead}.

    Command line: Give a message; `forkpoint retry` and `forkpoint resume` go on with a turn that did not commit.
    """

    conversation: str
    instead: str = ""
    what: str = "no message to run"
    why: str = ""

    @classmethod
    def going_on(cls, conversation: str, why: str, instead: str = "") -> "NothingToRun":
        """The error where nothing can go on without a message."""
        return cls(conversation, instead, "nothing to go on with", f": {why}")


class NoSuchTurn(ForkpointError, code="no_such_turn"):
    """Conversation {conversation} has no turn to {verb}: {why}.

    Read its turns to see how they stand.

    Command line: Use `forkpoint show {conversation} --turns` to see how its turns stand.
    """

    conversation: str
    verb: str
    why: str
