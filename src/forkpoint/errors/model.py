"""Errors of models: what was asked for cannot be asked, or a call failed. Tests: tests/test_errors.py."""

from typing import ClassVar

from forkpoint.errors.error import ForkpointError
from forkpoint.errors.form import form


class BadModel(ForkpointError, code="bad_model"):
    """{model!r} names no model: {why}.

    Use openai/NAME, anthropic/NAME, local/smollm2, local/PATH.gguf or scripted/NAME.
    """

    model: str
    why: str

    @form
    def model_not_named(self, model: str, known: str, file: str) -> None:
        """There is no model {model!r}: it has no provider before a slash, and no settings name it (they name {known}).

        Use openai/NAME, anthropic/NAME, local/smollm2, local/PATH.gguf or scripted/NAME, or write a table
        [models.{model}] in {file}.

        HTTP: Use openai/NAME, anthropic/NAME or local/smollm2, or name one of the server's agents.

        Chat: Use another model, or tell whoever runs the server.
        """
        self.why = "it has no provider before a slash, and no settings name it"

    @form
    def no_script(self, name: str) -> None:
        """There is no script {name!r}.

        Name a .json file; scripted/echo is always there.

        Python: Register one with forkpoint.testing.Script(...).register(name), or name a .json file; scripted/echo is
        always there.
        """
        self.model, self.why = f"scripted/{name}", "there is no such script"

    @form
    def bad_script(self, name: str, why: str) -> None:
        """The script {name!r} cannot be used: {why}.

        Read docs/models.md for what stands in a script.
        """
        self.model = f"scripted/{name}"


class BadSetting(ForkpointError, code="bad_setting"):
    """{setting} cannot be set like this for {model}: {why}.

    Leave it out, or choose another model or wire.
    """

    model: str
    setting: str
    why: str

    @form
    def bad_document(self, model: str, setting: str, why: str) -> None:
        """{setting} of {model} cannot be read: {why}.

        Restore it from where it was stored, or make a new one.

        Chat: Tell whoever runs the server.
        """

    @form
    def broken_settings(self, setting: str, why: str) -> None:
        """{setting} cannot be used: {why}.

        Correct it, and try again.

        HTTP: Tell whoever runs the server, and try again.

        Chat: Tell whoever runs the server, and try again.
        """
        self.model = "Forkpoint"

    @form
    def unsafe_settings(self, path: str, why: str) -> None:
        """The settings in {path} are not used, since others may have written them: {why}.

        Make that right, and try again.

        HTTP: Tell whoever runs the server, and try again.

        Chat: Tell whoever runs the server, and try again.
        """
        self.model, self.setting = "Forkpoint", path

    @form
    def bad_prompt(self, model: str, setting: str, why: str) -> None:
        """{model} cannot be asked with {setting}: {why}.

        Make the prompt again, with the manifest of the model that is asked.

        Chat: Tell whoever runs the server.
        """

    @form
    def unknown_renderer(self, version: int, known: int) -> None:
        """This conversation's prompts are rendered by version {version}, which only a newer Forkpoint has (this one
        knows up to {known}); nothing was sent.

        Upgrade Forkpoint, or give the conversation a new manifest.

        Chat: Go on in another conversation, or tell whoever runs the server.
        """
        self.model, self.setting, self.why = "", "renderer", f"version {version} is not known"


class MissingKey(ForkpointError, code="missing_key"):
    """{model} needs a key, and the environment variable {variable} is not set.

    Set it, or use local/smollm2, which needs none.

    Python: Set it, name another with api_key_env, or use local/smollm2, which needs none.

    HTTP: Tell whoever runs the server, who can set it.

    Chat: Tell whoever runs the server, who can set it.
    """

    model: str
    variable: str


class ModelError(ForkpointError, code="model_error"):
    """A call of {model} failed: {detail}."""

    passing: ClassVar[bool] = False  # whether the same call may well succeed a little later
    model: str
    detail: str
    retry_after: float | None = None  # seconds, if the provider said so
    field: str | None = None  # which field of the request the provider objects to
    lasting: bool = False  # whether this one will not pass, though others of its kind may
    provider_request: str | None = None  # the provider's name for the request, for whoever asks its support
    status: int | None = None  # the HTTP status that the provider answered with, if it did


class RateLimited(ModelError, code="model_rate_limit"):
    """{model} is asked more often than its provider allows: {detail}.

    Wait, or raise the limit, and try again.

    Chat: Wait, and try again.
    """

    passing = True


class ContextTooLong(ModelError, code="model_context_too_long"):
    """The prompt is too long for {model}: {detail}.

    Fork from an earlier turn, condense the conversation, or use a model with a larger context.

    Command line: Use `forkpoint condense` to have the older part summed up, fork from an earlier turn, or use a model
    with a larger context.

    Chat: Send a shorter message, begin a new conversation, or use a model with a larger context.
    """


class RequestRefused(ModelError, code="model_bad_request"):
    """The provider of {model} did not understand the request: {detail}.

    Check the fields and parts of the request, the model's name and its settings.

    Chat: Check the fields and the parts of the request.
    """

    @form
    def model_authentication(self, model: str, detail: str) -> None:
        """The provider of {model} does not accept the key: {detail}.

        Check the key, its rights and the base URL.

        HTTP: Tell whoever runs the server: it is the server's own key, not yours.

        Chat: Tell whoever runs the server: it is the server's own key, not yours.
        """

    @form
    def model_unknown(self, model: str, detail: str) -> None:
        """The provider of {model} has no such model: {detail}.

        Check the model's name, or use another model.

        Chat: Use another model, or tell whoever runs the server.
        """

    @form
    def model_wrong_address(self, model: str, detail: str) -> None:
        """What answers at the address of {model} does not have this call: {detail}.

        Check the base URL and the API.

        HTTP: Tell whoever runs the server, who can check the base URL.

        Chat: Tell whoever runs the server, who can check the base URL.
        """

    @form
    def model_quota(self, model: str, detail: str) -> None:
        """The account for {model} has no quota left: {detail}.

        Raise its limit or use another key.

        HTTP: Tell whoever runs the server: it is the server's own account.

        Chat: Tell whoever runs the server: it is the server's own account.
        """

    @form
    def model_refused(self, model: str, detail: str) -> None:
        """{model} refused the content: {detail}.

        Nothing was added to the conversation; ask in another way.
        """


class ModelUnavailable(ModelError, code="model_overloaded"):
    """The provider of {model} could not answer now: {detail}.

    Try again in a while.
    """

    passing = True

    @form
    def model_timeout(self, model: str, detail: str) -> None:
        """{model} did not answer in time: {detail}.

        Try again, or raise its timeouts.

        Chat: Try again.
        """

    @form
    def model_connection(self, model: str, detail: str) -> None:
        """The connection to {model} failed: {detail}.

        Check the base URL and the network, and try again.

        Chat: Try again in a while; if that does not help, tell whoever runs the server.
        """


class AnswerMalformed(ModelError, code="model_malformed"):
    """The answer of {model} makes no sense: {detail}.

    Nothing of it was kept; try again.
    """

    passing = True

    @form
    def model_empty(self, model: str, detail: str, lasting: bool = False) -> None:
        """{model} answered nothing: {detail}.

        Try again, or ask in another way.
        """
