"""Errors of servers and their clients. Tests: tests/test_errors.py."""

from forkpoint.errors.error import ForkpointError
from forkpoint.errors.form import form


class BadRequest(ForkpointError, code="bad_request"):
    """The request makes no sense: {why}.

    Read /openapi.json for what this call takes.
    """

    why: str

    @form
    def encoded_body(self, encoding: str) -> None:
        """The body of the request is compressed or encoded ({encoding!r}), and the server reads it only as it is.

        Send it without Content-Encoding.
        """
        self.why = f"its body is encoded ({encoding})"

    @form
    def websocket_connection_limit_reached(self, minutes: int) -> None:
        """This WebSocket has been open for {minutes} minutes, which is as long as one may be, and closes now.

        Open another one. What is stored can be gone on from there; send the whole input for what is not.
        """
        self.why = f"a WebSocket lasts {minutes} minutes"

    @form
    def digest_missing(self, param: str, why: str) -> None:
        """The approval does not say what was seen ({param}: {why}), and nothing was run.

        Send `calls`, each with its `id` and its `digest`: each waiting call in the turn's document has both.
        """


class Invalid(ForkpointError, code="invalid"):
    """{param} of the request cannot be taken: {why}.

    Read /openapi.json for what this call takes.
    """

    param: str
    why: str

    @form
    def unsupported(self, param: str, why: str) -> None:
        """{param} cannot be done here: {why}.

        Leave it out.
        """

    @form
    def no_new_user_message(self, why: str) -> None:
        """There is nothing new to answer: {why}.

        The last message, system messages aside, must be the user's, with a text or a part that is supported, or the
        result of a call that is open. Nothing older is used instead.
        """
        self.param = "messages"


class TooMany(ForkpointError, code="too_many"):
    """There are too many {what} now ({limit:,} are allowed), and nothing was begun.

    Try again in {retry_after} s.
    """

    what: str
    limit: int
    retry_after: int = 1


class TooSlow(ForkpointError, code="too_slow"):
    """The {what} of the request did not come within {seconds:g} s, and nothing was begun.

    Send it again, at once.
    """

    what: str
    seconds: float


class ShuttingDown(ForkpointError, code="shutting_down"):
    """The server is stopping: this was not begun, or it was a side question that was given up.

    Try again in {retry_after} s.
    """

    retry_after: int = 5

    @form
    def turn_handed_over(self, turn: str) -> None:
        """The server is stopping and has let go of turn {turn}, which had not finished: its finished steps are kept,
        and another server can go on with it.

        Send the same request again in {retry_after} s: with the Idempotency-Key of the first, if it had one, the turn
        goes on. Or resume the turn.

        Command line: Try again in {retry_after} s, or resume the turn with `forkpoint resume`.

        Chat: Send the same request again in {retry_after} s.
        """


class AddressTaken(ForkpointError, code="address_taken"):
    """The server cannot listen on {host} port {port} ({detail}).

    Choose another with --port, or stop what is there.

    Chat: Tell whoever runs the server.
    """

    host: str
    port: int
    detail: str


class ServerUnreachable(ForkpointError, code="server_unreachable"):
    """The server at {url} cannot be reached ({detail}).

    Check the address, and that it runs; what was sent with an idempotency key can safely be sent again.
    """

    url: str
    detail: str


class ServerError(ForkpointError, code="server_error"):
    """The server refused with {server_code!r}: {server_message}

    Look for request {request_id} in its log.
    """

    server_code: str
    server_message: str
    request_id: str


class Unauthorized(ForkpointError, code="unauthorized"):
    """This call needs a key: {why}.

    Send one as `Authorization: Bearer KEY`; whoever runs the server makes one with `forkpoint keys add`.

    Command line: Set FORKPOINT_API_KEY to a key of that server; whoever runs the server makes one with `forkpoint keys
    add`.
    """

    why: str

    @form
    def foreign_origin(self, origin: str) -> None:
        """A web page of {origin!r} may not call this server.

        Name its origin in cors_origins of the server's file, or use a key.

        Chat: Use a key, or tell whoever runs the server, who can name the origin in cors_origins.
        """
        self.why = f"the page that calls is of {origin!r}"


class Forbidden(ForkpointError, code="forbidden"):
    """This call needs a key with the role {needed}, and the key {key!r} has the role {role}.

    Use a key that may do it; whoever runs the server makes one with `forkpoint keys add NAME --role {needed}`.
    """

    key: str
    role: str
    needed: str


class BadKeys(ForkpointError, code="bad_keys_file"):
    """{path} cannot be used as the file of keys: {why}.

    Restore or repair it, or name another file; a new one is made by `forkpoint keys add`.

    Chat: Tell whoever runs the server.
    """

    path: str
    why: str

    @form
    def bad_key_variable(self, variable: str, why: str) -> None:
        """The environment variable {variable} cannot be the server's key: {why}.

        Set it to a long random text, or leave it out and use a file of keys.
        """
        self.path = f"${variable}"

    @form
    def bad_api_key(self, variable: str, url: str, why: str) -> None:
        """The environment variable {variable} cannot be sent to {url} as a key: {why}.

        Set it to a key of that server, or unset it if the server needs none.
        """
        self.path = f"${variable}"

    @form
    def open_to_the_world(self, host: str) -> None:
        """Whoever can reach {host} could use this server, for it has no keys.

        Make one with `forkpoint keys add` and start it with --keys, or listen on 127.0.0.1.

        Chat: Tell whoever runs the server.
        """
        self.path, self.why = "", f"there are none, and {host} can be reached from elsewhere"
