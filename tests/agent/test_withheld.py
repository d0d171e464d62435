"""What looks like a credential is not given to commands, and is hidden where it comes back; ordinary variables pass."""

import os
import subprocess
import sys
from typing import Any

import pytest

from forkpoint.agent import Agent, Condenser, Secret, SubAgents
from forkpoint.agent.builtin.environment import base
from forkpoint.agent.secrets.masking import Masking
from forkpoint.agent.secrets.withheld import is_telling, is_withheld, looks_secret, masking_of_withheld
from forkpoint.llm.model import LLM

RANDOM = "q7Zr2Xw9Lk4Tb8"


@pytest.mark.parametrize(
    "name",
    [
        *("DBPW", "DB_PW", "dbPw", "MYSQLPASS", "PGPASSWORD", "SMTP_PASSWD", "ROOT_PWD", "PASSPHRASE"),
        *("SLACK_WEBHOOK", "SLACK_WEBHOOK_URL", "slackWebhookUrl", "SENTRY_DSN", "SENTRYDSN", "DSN"),
        *("AZURE_CLIENT", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "AZURE_CLIENT_CERTIFICATE_PATH", "CLIENTSECRET"),
        *("AZURE_STORAGE_CONNECTION_STRING", "CONN_STR", "DB_CONNSTR", "ConnectionStrings__Default"),
        *("OPENAI_API_KEY", "APIKEY", "API-KEY", "SECRET_KEY_BASE", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"),
        *(
            "GITHUB_TOKEN",
            "GHTOKEN",
            "NPM_AUTHTOKEN",
            "npm_config__authToken",
            "GITHUB_PAT",
            "CI_JOB_JWT",
            "BOT_TOKENS",
        ),
        *("GITHUB_OAUTH", "BASIC_AUTH", "SSH_AUTH_SOCK", "GOOGLE_APPLICATION_CREDENTIALS", "AWS_CREDS", "DOCKER_CRED"),
        *("SSH_PRIVATE_KEY", "PRIVATE_PEM", "SESSION_COOKIE", "AZURE_SAS", "LOGIN_OTP", "MYSECRET"),
    ],
)
def test_a_name_that_speaks_of_a_credential_is_withheld(name: str) -> None:
    assert looks_secret(name, "k")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("PATH", "/usr/bin:/bin"), ("HOME", "/home/ann"), ("LANG", "C.UTF-8"), ("PWD", "/work"), ("OLDPWD", "/")),
        *(
            ("KEYBOARD", "de"),
            ("KEYMAP", "us"),
            ("XKB_LAYOUT", "us"),
            ("MONKEY", "1"),
            ("TOKENIZERS_PARALLELISM", "true"),
        ),
        *(("SSH_CONNECTION", "1.2.3.4 5 6.7.8.9 22"), ("SSH_CLIENT", "1.2.3.4 5 22"), ("COMPASS_HOME", "/opt/compass")),
        *(("SSL_CERT_FILE", "/etc/ssl/cert.pem"), ("NODE_EXTRA_CA_CERTS", "/etc/ca.crt"), ("REQUESTS_CA_BUNDLE", "/x")),
        *(("GOPRIVATE", "example.org"), ("AUTHOR", "Ann"), ("GIT_AUTHOR_NAME", "Ann"), ("PASSENGER_APP_ENV", "test")),
        *(("DBUS_SESSION_BUS_ADDRESS", "unix:path=/run/user/1000/bus"), ("XDG_SESSION_ID", "2"), ("SECONDS", "1")),
        *(
            ("AWS_REGION", "eu-west-1"),
            ("CREDO", "x"),
            ("GIT_ASKPASS", "/usr/bin/x"),
            ("LS_COLORS", "di=01;34:ln=01;36"),
        ),
        *(
            ("DATABASE_URL", "postgres://localhost:5432/shop"),
            ("GIT_SSH_COMMAND", "ssh -i x"),
            ("REMOTE", "ssh://git@h/x"),
        ),
        *(("PYTHONPATH", "/a:/b"), ("VIRTUAL_ENV", "/v"), ("CI", "true"), ("HOSTNAME", "box"), ("TERM", "xterm")),
    ],
)
def test_ordinary_variables_pass(name: str, value: str) -> None:
    assert not looks_secret(name, value)


@pytest.mark.parametrize(
    "value",
    [
        *("sk-proj-0123456789abcdef", "ghp_0123456789abcdef", "xoxb-0123456789-abc", "AKIAIOSFODNN7EXAMPLE"),
        *(
            "postgres://ann:s3cret@db/shop",
            "redis://:s3cret@cache",
            "https://0123456789abcdef01234567@o1.ingest.example/4",
        ),
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2ln",
        "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaA==",
        "Server=db;Database=shop;User Id=ann;Password=hunter22;",
        "DefaultEndpointsProtocol=https;AccountName=x;AccountKey=abcd1234==",
    ],
)
def test_a_value_that_is_a_credential_is_withheld_whatever_its_name(value: str) -> None:
    assert looks_secret("ORDINARY", value)


def test_a_name_can_be_let_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent.4711")
    monkeypatch.setenv("GPG_KEY", RANDOM)
    assert {"SSH_AUTH_SOCK", "GPG_KEY"}.isdisjoint(base())
    monkeypatch.setenv("FORKPOINT_SHELL_ENV", "SSH_AUTH_SOCK, GPG_KEY")
    assert base()["SSH_AUTH_SOCK"] == "/run/agent.4711"
    assert base()["GPG_KEY"] == RANDOM
    assert RANDOM in masking_of_withheld().text(f"it is {RANDOM}"), "what a command is given is not hidden from it"
    assert not is_withheld("GPG_KEY", RANDOM)


def test_a_variable_with_a_known_secret_in_it_is_withheld_whatever_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDINARY", f"x={RANDOM}")
    monkeypatch.setenv("PATH", f"/opt/{RANDOM}:/usr/bin:/bin")
    assert "ORDINARY" in base()
    given = base(Masking([RANDOM]))
    assert "ORDINARY" not in given
    assert "PATH" in given, "without it no command would run"


@pytest.mark.parametrize(
    ("name", "where"), [("CFG_A", "secrets"), ("CFG_B", "llm"), ("CFG_C", "condenser"), ("CFG_D", "sub_agents")]
)
def test_a_variable_that_any_agent_of_the_process_names_is_withheld_from_all(
    name: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, RANDOM)
    assert base()[name] == RANDOM
    keyed = LLM("openai/m", api_key_env=name)
    settings: dict[str, Any] = {
        "secrets": {"BUILD": Secret(env=name)},
        "llm": keyed,
        "condenser": Condenser(llm=keyed),
        "sub_agents": SubAgents(models=[keyed]),
    }
    Agent(**{"llm": "scripted/echo", where: settings[where]})
    assert name not in base()
    assert masking_of_withheld().text(f"it is {RANDOM}") == "it is ***"
    monkeypatch.setenv("FORKPOINT_SHELL_ENV", name)
    assert base()[name] == RANDOM, "whoever runs the process decides"


def test_an_agent_that_names_the_path_as_a_secret_leaves_commands_their_path() -> None:
    Agent("scripted/echo", secrets={"ODD": Secret(env="PATH")})
    assert "PATH" in base()


def test_withheld_values_are_hidden_in_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DBPW", RANDOM)
    monkeypatch.setenv("SHOP_DB", "postgres://ann:Hunter2Hunter2%21@db/shop")
    masking = masking_of_withheld(frozenset({"Kw83-own-key"}))
    shown = masking.text(f"a {RANDOM} b Hunter2Hunter2%21 c Hunter2Hunter2! d Kw83-own-key e")
    assert shown == "a *** b *** c *** d *** e"


@pytest.mark.parametrize(
    "value",
    [
        *("1", "true", "yes", "postgres", "production", "12345678", "/run/secrets/db1", "~/.ssh/id_rsa2", "aaaa1111"),
        *("eu-west", "http://localhost:8080", "https://example.org/login", "none", "not-needed", "          "),
    ],
)
def test_a_withheld_value_that_is_an_ordinary_word_is_not_hidden_for_it_would_spoil_results(value: str) -> None:
    assert not is_telling(value)


@pytest.mark.parametrize(
    "value",
    [
        *(
            RANDOM,
            "hunter2hunter2",
            "Tr0ub4dor&3",
            "0123456789abcdef",
            "/xY3+Zq81Kd=/aB",
            "correct horse! battery staple",
        ),
        "https://hooks.slack.example/services/T0123ABCD/B0123ABCD/abcdEFGH12345678",
    ],
)
def test_a_value_that_tells_something_is_hidden(value: str) -> None:
    assert is_telling(value)


PROGRAM = r"""
from forkpoint import Agent, Conversation
from forkpoint.agent.builtin import shell
from forkpoint.testing import Reply, Script, ScriptedCall
call = ScriptedCall("shell", '{"command": "env; tr \'\\\\0\' \'\\\\n\' < /proc/$PPID/environ; cat told"}')
agent = Agent(Script([Reply(calls=(call,)), Reply("Done.")]).register("reader"), tools=[shell])
import os
with open("told", "w") as file:
    file.write("a file has " + os.environ["DBPW"])
with Conversation(agent, store="memory:", workspace=".") as conversation:
    print(conversation.run("Look.").calls[0].result)
"""


def test_a_shell_command_finds_no_withheld_value_in_its_own_environment_its_parent_s_or_a_file(
    tmp_path: object,
) -> None:
    env = {"PATH": os.environ["PATH"], "DBPW": RANDOM, "SHOWN": "in the open", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, cwd=str(tmp_path), capture_output=True, text=True, check=False
    )
    assert "SHOWN=in the open" in done.stdout, done.stderr
    assert "a file has ***" in done.stdout
    assert RANDOM not in done.stdout
