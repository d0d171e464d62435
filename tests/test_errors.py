"""Every error has a code for good, and a message that says what happened and what to do."""

import copy
import pickle
import re
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkpoint import errors
from forkpoint.errors import KINDS, ErrorKind, ForkpointError, Surface, class_of, fields_of
from forkpoint.errors.form import Form

# Callers and other programs tell errors apart by these. A code is added, never renamed and never used again.
CODES = {
    "Invalid.no_new_user_message": "no_new_user_message",
    "Unpaired.call_not_open": "call_not_open",
    "NotFound.model_not_found": "model_not_found",
    "Invalid.unsupported": "unsupported",
    "AlreadyExists": "exists",
    "BadName.ambiguous": "ambiguous",
    "CommitFailed": "commit_failed",
    "TurnBehind": "turn_behind",
    "TurnSteered": "turn_steered",
    "BadName.bad_cursor": "bad_cursor",
    "BadArgument.bad_lineage": "bad_lineage",
    "Busy.conversation_locked": "conversation_locked",
    "NotFound.previous_response_not_found": "previous_response_not_found",
    "BadName.bad_id": "bad_id",
    "BadName": "bad_name",
    "BadPosition": "bad_position",
    "BadStoreUrl": "bad_store_url",
    "Busy": "busy",
    "Held": "held",
    "CannotKeep": "cannot_keep",
    "CannotKeep.keeps_itself": "keeps_itself",
    "CannotKeep.branch_not_ready": "branch_not_ready",
    "StoreUnavailable.store_away": "store_away",
    "StoreUnavailable.disk_full": "disk_full",
    "ForkpointError": "error",
    "KeyReused": "key_reused",
    "StoreUnusable.network_file_system": "network_file_system",
    "StoreUnusable": "not_a_store",
    "NotFound": "not_found",
    "NotResumable": "not_resumable",
    "NotWhole": "not_whole",
    "OutcomeUnknown": "outcome_unknown",
    "StoreUnusable.read_only": "read_only",
    "CopyRefused": "copy_refused",
    "CopyRefused.file_exists": "file_exists",
    "CopyRefused.store_exists": "store_exists",
    "CopyRefused.store_in_use": "store_in_use",
    "CopyRefused.erasures_not_named": "erasures_not_named",
    "CopyRefused.on_a_server": "on_a_server",
    "StoreUnavailable.too_many_connections": "too_many_connections",
    "CopyRefused.needs_program": "needs_program",
    "CopyRefused.behind_a_pooler": "behind_a_pooler",
    "StoreUnusable.other_tables": "other_tables",
    "StoreUnusable.unfit_database": "unfit_database",
    "StoreUnusable.login_refused": "login_refused",
    "StoreUnusable.missing_rights": "missing_rights",
    "StoreUnusable.pooler_not_named": "pooler_not_named",
    "StoreUnusable.other_event_loop": "other_event_loop",
    "StoreUnusable.opened_to_read": "opened_to_read",
    "StoreUnusable.store_older": "store_older",
    "StoreUnusable.log_not_readable": "log_not_readable",
    "StoreDamaged.log_alone": "log_alone",
    "StoreDamaged.log_foreign": "log_foreign",
    "StoreDamaged.log_missing": "log_missing",
    "Stale": "stale",
    "StoreUnavailable.store_closed": "store_closed",
    "StoreDamaged": "store_damaged",
    "StoreError": "store_error",
    "StoreUnusable.store_newer": "store_newer",
    "StoreUnavailable": "store_unavailable",
    "TooLarge": "too_large",
    "TurnLost": "turn_lost",
    "TurnOpen": "turn_open",
    "Unpaired": "unpaired",
    "BadAgent": "bad_agent",
    "BadConfig": "bad_config",
    "BadExport": "bad_export",
    "BadFile": "bad_file",
    "BadMessages": "bad_messages",
    "CannotResume": "cannot_resume",
    "TrustChanged": "trust_changed",
    "TrustChanged.guards_lost": "guards_lost",
    "BadSetting.broken_settings": "broken_settings",
    "BadSetting.unsafe_settings": "unsafe_settings",
    "TurnFailed": "turn_failed",
    "TurnCancelled": "turn_cancelled",
    "LimitReached": "limit_reached",
    "BudgetExceeded": "budget_exceeded",
    "BudgetExceeded.budget_unpriced": "budget_unpriced",
    "HookBlocked": "hook_blocked",
    "BadOutput": "bad_output",
    "NothingToRun": "nothing_to_run",
    "NoSuchTurn": "no_such_turn",
    "NotShown": "not_shown",
    "CallChanged": "call_changed",
    "BadRequest.digest_missing": "digest_missing",
    "NoAgent": "no_agent",
    "BadArgument": "bad_argument",
    "BadWorkspace": "bad_workspace",
    "BadWorkspace.workspace_not_made": "workspace_not_made",
    "ConversationClosed": "conversation_closed",
    "ConversationClosed.reopen_after_fork": "reopen_after_fork",
    "UseAsync": "use_async",
    "UseWith": "use_with",
    "BadModel": "bad_model",
    "BadSetting.bad_document": "bad_document",
    "BadSetting.bad_prompt": "bad_prompt",
    "BadSetting": "bad_setting",
    "BadTool": "bad_tool",
    "MissingKey": "missing_key",
    "BadSetting.unknown_renderer": "unknown_renderer",
    "ExtraMissing": "extra_missing",
    "ExtraBroken.package_missing": "package_missing",
    "LibraryMissing": "library_missing",
    "ExtraBroken": "extra_broken",
    "McpFailed": "mcp_failed",
    "NoSecret": "no_secret",
    "NoWeights": "no_weights",
    "NoWeights.fetch_failed": "fetch_failed",
    "BadModel.model_not_named": "model_not_named",
    "BadModel.no_script": "no_script",
    "BadModel.bad_script": "bad_script",
    "ModelError": "model_error",
    "RequestRefused.model_authentication": "model_authentication",
    "RequestRefused.model_quota": "model_quota",
    "RequestRefused.model_unknown": "model_unknown",
    "RequestRefused.model_wrong_address": "model_wrong_address",
    "RateLimited": "model_rate_limit",
    "ContextTooLong": "model_context_too_long",
    "RequestRefused.model_refused": "model_refused",
    "RequestRefused": "model_bad_request",
    "ModelUnavailable": "model_overloaded",
    "ModelUnavailable.model_timeout": "model_timeout",
    "ModelUnavailable.model_connection": "model_connection",
    "AnswerMalformed": "model_malformed",
    "AnswerMalformed.model_empty": "model_empty",
    "BadRequest": "bad_request",
    "BadRequest.encoded_body": "encoded_body",
    "BadRequest.websocket_connection_limit_reached": "websocket_connection_limit_reached",
    "ImportRefused": "import_refused",
    "Invalid": "invalid",
    "NotFound.no_such_call": "no_such_call",
    "NotFound.method_not_allowed": "method_not_allowed",
    "Unauthorized.foreign_origin": "foreign_origin",
    "TooMany": "too_many",
    "TooSlow": "too_slow",
    "ShuttingDown": "shutting_down",
    "ShuttingDown.turn_handed_over": "turn_handed_over",
    "BadKeys.open_to_the_world": "open_to_the_world",
    "AddressTaken": "address_taken",
    "ServerUnreachable": "server_unreachable",
    "SecretInside": "secret_inside",
    "ServerError": "server_error",
    "Unauthorized": "unauthorized",
    "Forbidden": "forbidden",
    "BadKeys": "bad_keys_file",
    "BadKeys.bad_key_variable": "bad_key_variable",
    "NotFound.no_such_key": "no_such_key",
    "NotFound.none_named": "none_named",
    "BadKeys.bad_api_key": "bad_api_key",
    "NotKept": "not_kept",
    "BadWorkspace.trust_refused": "trust_refused",
    "BadWorkspace.workspace_differs": "workspace_differs",
    "SpawnRefused.agent_closed": "agent_closed",
    "NotFound.no_such_agent": "no_such_agent",
    "SpawnRefused": "spawn_refused",
    "BringRefused": "bring_refused",
}

BASES = {"ForkpointError", "ModelError", "StoreError"}  # caught, never raised: nothing can be said on what to do

WHAT_TO_DO = re.compile(
    r"\b(ask|check|choose|create|discard|fork|free|leave|make|name|open|pass|raise|read|remove|restore|resume|retry|send|"
    r"say|settle|stop|tell|look for|try|upgrade|use|wait|it takes|needs|nearest)\b",
    re.IGNORECASE,
)

quick = settings(max_examples=15, deadline=None, database=None)


def name_of(kind: ErrorKind) -> str:
    """How a program names a kind: as a class, or as a form of one."""
    cls = class_of(kind)
    return cls.__name__ if kind is cls else f"{cls.__name__}.{kind.code}"


ALL = [kind for kind in KINDS.values() if class_of(kind).__module__.startswith(errors.__name__)]
each_error = pytest.mark.parametrize("kind", ALL, ids=name_of)


def typed(kind: ErrorKind) -> dict[str, Any]:
    """The fields of an error and their types, in the order that it takes them."""
    fields = fields_of(kind).items()
    return {
        name: field.annotation
        for name, field in fields
        if isinstance(field.annotation, type) or field.annotation == int | str
    }


def sample(kind: ErrorKind, text: str = "sample") -> ForkpointError:
    """An error whose fields are all filled in."""
    samples: dict[Any, Any] = {str: text, int: 1234567, int | str: text, float: 12.5, bool: True}
    return kind(**{name: samples[sort] for name, sort in typed(kind).items()})


def test_the_codes_are_the_ones_that_callers_know() -> None:
    assert {name_of(kind): kind.code for kind in ALL} == CODES, (
        "codes are part of the API: add a new one to this table, and never change one that is in it"
    )


def test_no_two_errors_share_a_code() -> None:
    classes = {class_of(kind) for kind in ALL}
    codes = [cls.code for cls in classes]
    codes += [form.code for cls in classes for form in vars(cls).values() if isinstance(form, Form)]
    assert len(codes) == len(set(codes)), f"used twice: {sorted(code for code in codes if codes.count(code) > 1)}"


@each_error
def test_a_code_is_set_by_the_class_itself_and_spelled_like_the_others(kind: ErrorKind) -> None:
    bases = class_of(kind).__mro__[1:]
    assert kind.code not in [getattr(base, "code", None) for base in bases], "callers cannot tell it from its base"
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", kind.code), f"{kind.code!r} is not in snake case"


@each_error
def test_a_message_is_filled_in_from_all_its_fields(kind: ErrorKind) -> None:
    message = str(sample(kind))
    assert not re.search(r"[{}]", message), f"a field of {name_of(kind)} is not filled in: {message}"
    assert "  " not in message, f"line breaks of the docstring show: {message!r}"
    assert "\n" not in message, f"line breaks of the docstring show: {message!r}"
    assert not message.startswith(f"{name_of(kind)}("), f"{name_of(kind)} has no message: write its docstring"


@each_error
def test_a_message_shows_each_field_that_tells_where(kind: ErrorKind) -> None:
    shown = set(re.findall(r"\{(\w+)", kind.__doc__ or ""))
    shown |= {"call_id", "lasting"}  # `why` names the call already, and `lasting` is for whoever retries
    shown |= {"use", "needed", "used_up"}  # a part of the sentence is made of them
    hidden = set(typed(kind)) - shown
    assert not hidden, f"{name_of(kind)} takes {sorted(hidden)} and never shows it"


@pytest.mark.parametrize("kind", [kind for kind in ALL if name_of(kind) not in BASES], ids=name_of)
def test_a_message_says_what_to_do(kind: ErrorKind) -> None:
    message = str(sample(kind))
    assert WHAT_TO_DO.search(message), f"whoever reads this does not know what to do next: {message}"


SURFACES: tuple[Surface, ...] = get_args(Surface)
PYTHON = re.compile(
    r"\w\(|=True|=None|\bsupersede=|\ballow=|`allow`|`trust`|api_key_env|forkpoint\.\w|AsyncConversation|os\.fork"
)
A_SHELL = re.compile(r"`forkpoint |pip install| --\w|base URL|-wal\b|GGUF|\.toml|cors_origins")
HEADERS = re.compile(r"\bX-[A-Z]|Idempotency-Key|Authorization:|/(approve|deny|retry|resume|discard)\b")
IN_A_PROGRAM_ALONE = {"reopen_after_fork"}  # its fact is about os.fork(), which nobody else can call


def advice_of(kind: ErrorKind, surface: Surface) -> str:
    """What a message says besides the fact."""
    error = sample(kind)
    return error.message(surface).removeprefix(error.fact(surface))


@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize("kind", [kind for kind in ALL if name_of(kind) not in BASES], ids=name_of)
def test_the_advice_of_an_error_can_be_followed_where_it_is_read(kind: ErrorKind, surface: Surface) -> None:
    message, advice = sample(kind).message(surface), advice_of(kind, surface)
    assert WHAT_TO_DO.search(message), f"whoever reads this does not know what to do next: {message}"
    if surface == "Python" or kind.code in IN_A_PROGRAM_ALONE:
        return
    assert not PYTHON.search(message), f"nobody can do this outside of a program ({surface}): {message}"
    if surface == "Command line":
        assert not HEADERS.search(advice), f"nobody can send this at a command line: {message}"
    if surface == "Chat":
        for sentence in re.split(r"(?<=[.;:]) ", advice):
            if "hoever runs the server" in sentence:
                continue
            assert not A_SHELL.search(sentence), f"a chat client cannot do this: {message}"
            assert not re.search(r"\b(resume|discard|approve|deny|settle)\b", sentence, re.IGNORECASE), message


def test_a_chat_client_that_lost_its_turn_is_not_told_to_say_the_same_twice() -> None:
    advice = advice_of(errors.TurnLost, "Chat")
    assert "look at the conversation before you send the request again" in advice
    assert "With the same Idempotency-Key the request gets what became of it" in advice


def test_an_error_is_told_with_the_advice_for_everybody_unless_a_surface_has_its_own() -> None:
    error = errors.TurnOpen("c", "t", "awaiting_approval")
    fact = "Turn t of conversation c is open (awaiting_approval)."
    assert error.fact() == fact
    assert error.message() == f"{fact} Approve or deny what waits in it, resume it, or discard it."
    assert "supersede=True" in str(error)
    assert error.message("Command line") == f"{fact} Use `forkpoint approve`, `deny`, `resume` or `discard c`."
    assert '"supersede": true' in error.message("HTTP")
    assert errors.BadRequest("no").message("Chat") == errors.BadRequest("no").message() == str(errors.BadRequest("no"))


def test_a_failed_turn_tells_its_reason_for_the_surface_where_it_is_read() -> None:
    cause = errors.MissingKey("openai/x", "OPENAI_API_KEY")
    failed = errors.TurnFailed("t", cause.message(), cause=cause)
    assert "api_key_env" in str(failed)
    assert "retry()" in str(failed)
    for surface in ("Command line", "HTTP", "Chat"):
        assert not PYTHON.search(failed.message(surface)), failed.message(surface)
    assert failed.fact("Chat").endswith("Tell whoever runs the server, who can set it. It had run no tools.")


@each_error
@quick
@given(text=st.text() | st.sampled_from(["{", "}", "{0}", "{path}", "%s", "\ud800", "\0", "x" * 100_000]))
def test_a_message_never_raises_whatever_the_fields_hold(kind: ErrorKind, text: str) -> None:
    assert str(sample(kind, text))
    assert repr(sample(kind, text))


def test_a_message_can_be_printed_and_sent_even_if_a_field_is_not_valid_unicode() -> None:
    unprintable = []
    for kind in ALL:
        try:
            str(sample(kind, "a file name that is not UTF-8: \udcff")).encode()
        except UnicodeEncodeError:
            unprintable.append(name_of(kind))
    assert not unprintable, f"print() and every JSON encoder would raise on the messages of {', '.join(unprintable)}"


@each_error
def test_an_error_survives_pickling_and_copying(kind: ErrorKind) -> None:
    error = sample(kind)
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(again) is class_of(kind)
        assert str(again) == str(error)
        assert vars(again) == vars(error)
        assert again.code == error.code
        assert again.args == tuple(error.fields.values())


@each_error
def test_fields_can_be_given_by_name_and_read_back(kind: ErrorKind) -> None:
    samples: dict[Any, Any] = {str: "sample", int: 7, int | str: "sample", float: 12.5, bool: True}
    given = {name: samples[sort] for name, sort in typed(kind).items()}
    error = kind(**given)
    assert {name: getattr(error, name) for name in given} == given
    assert error.fields.items() >= given.items()
    needed = [name for name, field in fields_of(kind).items() if field.default is field.empty]
    assert str(kind(*(given[name] for name in needed))) == str(kind(**{name: given[name] for name in needed}))


@each_error
def test_errors_are_told_apart_by_identity_like_all_exceptions(kind: ErrorKind) -> None:
    error, twin = sample(kind), sample(kind)
    assert error != twin
    assert len({error, twin}) == 2, "an error must be hashable: tracebacks and task groups rely on it"


def test_numbers_of_bytes_are_readable() -> None:
    assert "52,428,800 bytes; the limit is 33,554,432" in str(errors.TooLarge("payload", 50 << 20, 32 << 20))


def test_every_problem_of_a_store_names_the_store() -> None:
    for kind in ALL:
        if issubclass(class_of(kind), errors.StoreError):
            assert next(iter(fields_of(kind))) == "path"
            assert "/data/forkpoint.db" in str(sample(kind, "/data/forkpoint.db"))


@each_error
def test_an_error_has_all_the_fields_of_its_class_whatever_its_code_is(kind: ErrorKind) -> None:
    error = sample(kind)
    for name in fields_of(class_of(kind)):
        assert hasattr(error, name), f"whoever catches {class_of(kind).__name__} may read {name}: set it in the form"
