"""Errors of models: what was asked for cannot be asked, or a call failed. Tests: tests/test_errors.py."""

from typing import ClassVar

from forkpoint.errors.error import ForkpointError
from forkpoint.errors.form import form


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


class MissingKey(ForkpointError, code="missing_key"):
    """{model} needs a key, and the environment variable {variable} is not set. Set it, name another with api_key_env,
    or use local/smollm2, which needs none."""

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
