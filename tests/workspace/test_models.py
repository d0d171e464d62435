"""Models that settings name: what a table says, who may name one, and what is wrong is said with its place."""

from pathlib import Path

import pytest

from forkpoint import Agent
from forkpoint.agent.condense.condenser import Condenser
from forkpoint.agent.team.offer import SubAgents
from forkpoint.errors import BadAgent, BadConfig, BadModel, BadSetting, TrustChanged
from forkpoint.llm.model import LLM, Price
from forkpoint.server.agents.catalog import Catalog
from forkpoint.workspace import set_trust
from forkpoint.workspace.models.names import as_model, default_llm, model_from, users_models
from forkpoint.workspace.pins.pins import pinned_at

FAST = """
[models.fast]
model = "openai/qwen3"
base_url = "http://127.0.0.1:1/v1"
api_key_env = "GATEWAY_KEY"
temperature = 0.2
context_tokens = 32768
price = { input = 0.5, output = 2.0, cached = 0.05 }
headers = { X-Team = "builds" }
extra = { think = false }
"""
LLM_OF_FAST = LLM(
    "openai/qwen3",
    base_url="http://127.0.0.1:1/v1",
    api_key_env="GATEWAY_KEY",
    temperature=0.2,
    context_tokens=32768,
    price=Price(0.5, 2.0, 0.05),
    headers=(("X-Team", "builds"),),
    extra='{"think":false}',
)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's file, and an environment that says nothing."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("FORKPOINT_MODEL", raising=False)
    (tmp_path / "config" / "forkpoint").mkdir(parents=True)
    file = tmp_path / "config" / "forkpoint" / "config.toml"
    file.write_text(FAST)
    return file


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project" / ".git").mkdir(parents=True)
    (tmp_path / "project" / ".forkpoint").mkdir()
    return tmp_path / "project"


def sets(project: Path, text: str) -> None:
    (project / ".forkpoint" / "config.toml").write_text(text)


def test_a_name_is_the_whole_model_wherever_a_model_is_named(config: Path) -> None:
    assert as_model("fast") == Agent("fast").llm == LLM_OF_FAST
    assert SubAgents(models=["fast"]).models == (LLM_OF_FAST,)
    condensed = Agent("scripted/echo", condenser=Condenser(llm="fast")).condenser
    assert isinstance(condensed, Condenser)
    assert condensed.llm == LLM_OF_FAST
    stored = Agent("fast", condenser=Condenser(llm="fast")).to_json()
    assert "fast" not in stored, "nobody needs the settings to open it again"


def test_it_is_the_default_if_settings_or_the_environment_name_it(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text(f'model = "fast"\n{FAST}')
    assert default_llm() == LLM_OF_FAST
    config.write_text(FAST)
    assert default_llm().model == "local/smollm2"
    monkeypatch.setenv("FORKPOINT_MODEL", "fast")
    assert default_llm() == LLM_OF_FAST


def test_other_fields_change_it_and_with_a_base_url_the_name_is_the_servers(config: Path) -> None:
    assert model_from({"model": "fast", "api": "responses"}).wire == "responses"
    assert model_from({"model": "fast", "base_url": "http://127.0.0.1:2/v1"}) == LLM(
        "openai/fast", base_url="http://127.0.0.1:2/v1"
    )


def test_a_servers_file_may_name_it(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_KEY", "k")
    file = tmp_path / "server.toml"
    file.write_text('[agents.one]\nmodel = "fast"\ntemperature = 0\n[agents.one.condenser]\nllm = "fast"\n')
    one = Catalog.from_file(file).named("one")
    assert one.llm == model_from({"model": "fast", "temperature": 0})
    assert isinstance(one.condenser, Condenser)
    assert one.condenser.llm == LLM_OF_FAST
    file.write_text('[agents.one]\nmodel = "slow"\n')
    with pytest.raises(BadConfig, match="they name fast"):
        Catalog.from_file(file)


def test_a_client_cannot_name_one_of_the_servers_settings(config: Path) -> None:
    catalog = Catalog({"echo": Agent("scripted/echo")}, allow_models=["scripted/*"])
    for document in ('{"llm": "fast"}', '{"llm": "scripted/echo", "condenser": {"kind": "condenser", "llm": "fast"}}'):
        with pytest.raises(BadAgent, match=r"is not offered here|names a model") as refused:
            catalog.received(document)
        assert "qwen3" not in str(refused.value)


def test_a_name_that_nobody_has_says_which_names_there_are(config: Path) -> None:
    with pytest.raises(BadModel) as error:
        Agent("fats")
    assert error.value.code == "model_not_named"
    for part in ("'fats'", "they name fast", "[models.fats]", str(config)):
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ('base_url = "http://127.0.0.1:1/v1"', "models.x.model: it is missing"),
        ('model = "qwen3"', "models.x.model: 'qwen3' has no provider before a slash"),
        ('model = "nobody/qwen3"', "models.x.model: there is no provider 'nobody'"),
        (
            'model = "openai/a"\ntemprature = 1',
            "models.x.temprature: there is no such field; did you mean temperature?",
        ),
        ('model = "openai/a"\ntemperature = "warm"', "models.x.temperature: Expected `float | null`, got `str`"),
        ('model = "openai/a"\nbase_url = "localhost"', "models.x.base_url: it must start with http://"),
        ('model = "openai/a"\nprice = { input = 1 }', "models.x.price: Object missing required field `output`"),
        ('model = "openai/a"\napi = "morse"', "models.x.api: Invalid enum value 'morse'"),
        ('model = "openai/a"\napi_key = "sk-123"', "models.x.api_key: a literal key does not belong in a file"),
        ('model = "openai/a"\nheaders = { api-key = "k" }', "models.x.headers: api-key would be stored"),
    ],
)
def test_what_is_wrong_with_a_table_is_said_with_its_file_its_field_and_what_it_takes(
    config: Path, table: str, why: str
) -> None:
    config.write_text(f"{FAST}\n[models.x]\n{table}\n")
    with pytest.raises(BadSetting) as error:
        as_model("x")
    assert str(error.value).startswith(f"{config} cannot be used: {why}")
    assert "sk-123" not in str(error.value)
    assert as_model("fast") == LLM_OF_FAST, "one that is wrong is in nobody's way"
    assert isinstance(users_models()["x"], BadSetting)


def test_what_is_no_table_is_refused(config: Path, project: Path) -> None:
    config.write_text("models = 3")
    with pytest.raises(BadSetting, match=r"it must be tables, each of which begins \[models.NAME\]"):
        as_model("x")
    config.write_text("")
    sets(project, "[[models]]\nmodel = 'openai/a'\n")
    with pytest.raises(BadSetting, match=r"it must be tables, each of which begins with \[models.NAME\]"):
        as_model("x", project, trust="trusted")


def test_a_projects_names_hold_only_if_it_is_trusted_as_it_was_approved(config: Path, project: Path) -> None:
    sets(project, '[models.theirs]\nmodel = "openai/a"\nbase_url = "http://127.0.0.1:2/v1"\n')
    with pytest.raises(BadModel):
        as_model("theirs", project)
    set_trust(project, "trusted", config, pinned_at(project))
    assert as_model("theirs", project).base_url == "http://127.0.0.1:2/v1"
    with pytest.raises(BadModel):
        as_model("theirs")
    sets(project, '[models.theirs]\nmodel = "openai/a"\nbase_url = "http://evil.example/v1"\n')
    with pytest.raises(TrustChanged, match="`models` in its settings changed"):
        as_model("theirs", project)


def test_no_project_takes_a_name_of_the_users_but_its_own_word_means_its_own(config: Path, project: Path) -> None:
    sets(project, 'model = "fast"\n[models.fast]\nmodel = "openai/theirs"\n')
    assert as_model("fast", project, trust="trusted") == LLM_OF_FAST, "the user's word means what the user wrote"
    assert default_llm(project, trust="trusted").model == "openai/theirs", "the project says it, and means its own"
