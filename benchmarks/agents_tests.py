"""The Agents SDK's own tests of responses, sessions and retries, against a server whose model is scripted.

The tests are not ours and are not in this repository: they are run from a clone of openai/openai-agents-python. The
model knows nothing of them. It does what its prompt tells it to do, and answers questions with what it finds in the
prompt, so an answer is right only if the server sent it the whole history. pytest is given this module as a plugin: the
tests share a client, so they need one loop for all.
"""

import asyncio
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from msgspec import Struct
from tests.server.support.serving import ServerProcess

from benchmarks.progress import Progress
from forkpoint.testing import Heard, ModelServer, Reply, Script, ScriptedCall

FILES = ("test_sessions.py", "test_responses.py", "test_retry.py")
MODEL = "gpt-5.6"  # the SDK compacts only for models that it knows
PATIENCE = 600.0
"""Seconds for all tests."""

KNOWN = {"test_responses_compaction_preserves_history_across_owner_modes": "`/v1/responses/compact` is not offered"}
"""Tests that must fail, and why."""


class Outcome(Struct, frozen=True):
    """How one test ended."""

    name: str
    why: str | None  # the first line of what was wrong; None if nothing was

    @property
    def is_known(self) -> bool:
        """Whether it ended as it must."""
        return (self.why is not None) == (self.name.partition("[")[0] in KNOWN)


def run(clone: Path, folder: Path, progress: Progress) -> list[Outcome]:
    """Runs the tests. Raises `ValueError` if they are not there, or did not run."""
    tests = clone / "integration_tests"
    files = [tests / "openai" / name for name in FILES]
    if missing := [file for file in files if not file.is_file()]:
        raise ValueError(f"{clone} is no clone of openai/openai-agents-python: there is no {missing[0]}")
    report = folder / "report.xml"
    with ModelServer(Script(answer)) as models, _server(folder, models) as server:
        own = {"OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": "any", "OPENAI_AGENTS_INTEGRATION_MODEL": MODEL}
        progress.say(f"pytest {' '.join(FILES)}")
        settings = ["-c", str(tests / "pytest.ini"), "-p", __name__, "-p", "no:cacheprovider"]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", *settings, f"--junitxml={report}", *map(str, files)],
            env=os.environ | own,
            cwd=Path(__file__).parents[1],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
    if not report.is_file():
        raise ValueError(f"pytest did not run:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return _outcomes(report)


def _outcomes(report: Path) -> list[Outcome]:
    outcomes = []
    for case in ElementTree.parse(report).iter("testcase"):
        wrong = next(
            (found for kind in ("failure", "error", "skipped") if (found := case.find(kind)) is not None), None
        )
        why = None if wrong is None else (wrong.get("message") or wrong.tag).splitlines()[0][:160]
        outcomes.append(Outcome(case.get("name", ""), why))
    return outcomes


def _server(folder: Path, models: ModelServer) -> ServerProcess:
    model = ("--model", f"openai/{MODEL}", "--api", "chat", "--base-url", models.url, "--api-key-env", "FORKPOINT_KEY")
    return ServerProcess(*model, folder=folder, env={"FORKPOINT_KEY": "any"})


# For pytest.


_runner = asyncio.Runner()


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs an asynchronous test in the one loop."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    _runner.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


def pytest_unconfigure() -> None:
    _runner.close()


# The model.

_CALL = re.compile(r"(?:Call|Use) (\w+) with (\w+)(?:=| )('?)(\w+)\3")
_ORDER = re.compile(r"[Rr]eply (?:only|exactly|with exactly|with) ([A-Z][A-Z_]{3,}(?::\d+)?)")
_FACT = re.compile(r"(?:is|word) ([A-Z]{4,}|\d+)\b")
_VALUES = {"status": "READY", "value": 42, "note": None}


def answer(heard: Heard) -> Reply:
    """Does what the newest message and the instructions order; else answers with what was said before."""
    messages: list[dict[str, Any]] = heard.body["messages"]
    place = max(number for number, message in enumerate(messages) if message["role"] == "user")
    orders = "\n".join(_words(one) for one in messages if one["role"] == "system") + "\n" + _words(messages[place])
    if form := heard.body.get("response_format"):
        schema = form["json_schema"]["schema"]
        return Reply(json.dumps(_filled(schema, schema.get("$defs", {}))))
    has_results = any(message["role"] == "tool" for message in messages[place:])
    if heard.body.get("tools") and not has_results and (call := _CALL.search(orders)):
        value: Any = call[4] if call[3] else int(call[4])
        return Reply(calls=(ScriptedCall(call[1], json.dumps({call[2]: value})),))
    if order := _ORDER.search(orders):
        return Reply(order[1])
    before = messages[:place]
    if results := [_words(message) for message in before if message["role"] == "tool"]:
        return Reply(results[-1])
    facts = [fact for message in before if message["role"] == "user" for fact in _FACT.findall(_words(message))]
    return Reply(facts[-1] if facts else "I do not know")


def _words(message: dict[str, Any]) -> str:
    content = message["content"] or ""
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)


def _filled(schema: dict[str, Any], definitions: dict[str, Any]) -> Any:
    """An object of this form."""
    if "$ref" in schema:
        return _filled(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    parts: dict[str, Any] = schema["properties"]
    return {name: _VALUES[name] if name in _VALUES else _filled(part, definitions) for name, part in parts.items()}
