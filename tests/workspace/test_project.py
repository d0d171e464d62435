"""What a trusted project sets, and that nothing of any other is read."""

import os
from pathlib import Path

import pytest

from forkpoint.errors import BadSetting, TrustChanged
from forkpoint.workspace import ProjectSettings, Trust, project_settings, set_trust, settings_at
from forkpoint.workspace.defaults import MODEL, default_model, default_store, named_model, named_store, project_of


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project" / ".git").mkdir(parents=True)
    (tmp_path / "project" / "src").mkdir()
    return tmp_path / "project"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's file, and an environment that says nothing."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("FORKPOINT_MODEL", raising=False)
    monkeypatch.delenv("FORKPOINT_STORE", raising=False)
    (tmp_path / "config" / "forkpoint").mkdir(parents=True)
    return tmp_path / "config" / "forkpoint" / "config.toml"


def sets(project: Path, content: str | bytes) -> None:
    (project / ".forkpoint").mkdir(exist_ok=True)
    file = project / ".forkpoint" / "config.toml"
    file.write_bytes(content.encode() if isinstance(content, str) else content)


def test_a_trusted_project_sets_what_it_says_wherever_in_it_one_works(project: Path) -> None:
    assert project_settings(project, "trusted") == ProjectSettings()
    sets(project, 'model = "scripted/x"\nstore = "memory:"\ninstructions = "Be brief."\napproval = "risky"\n')
    expected = ProjectSettings("scripted/x", "memory:", "Be brief.", "risky")
    assert project_settings(project / "src", "trusted") == project_settings(project, "trusted") == expected
    sets(project, 'model = " "\n')
    assert project_settings(project, "trusted") == ProjectSettings(), "a blank says nothing"


@pytest.mark.parametrize("trust", ["untrusted", "undecided"])
def test_nothing_is_read_of_a_project_that_is_not_trusted(project: Path, trust: Trust) -> None:
    (project / ".forkpoint").mkdir()
    os.mkfifo(project / ".forkpoint" / "config.toml")  # whoever reads this waits for good, or says that it is no file
    assert project_settings(project, trust) == ProjectSettings()
    with pytest.raises(BadSetting, match="not a file"):
        project_settings(project, "trusted")


def test_settings_of_a_repository_inside_are_its_own(project: Path) -> None:
    sets(project, 'model = "scripted/x"\n')
    (project / "src" / ".git").mkdir()
    assert project_settings(project / "src", "trusted") == ProjectSettings()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("model = ", "not valid TOML"),
        (b"\xff", "not UTF-8"),
        ("model = 5", "model in .*must be a text"),
        ('approval = "sometimes"', "approval in .*must be never, risky or always"),
        ('colour = "x"\nmodel = "y"\n[size]\n', r"what is not known \(colour, size\)"),
        ('hooks = "x"', "hooks in .*must be tables"),
        ("[hooks]", "hooks in .*must be tables"),
        ("[mcp]", "mcp in .*must be tables"),
    ],
)
def test_a_trusted_projects_file_that_cannot_be_used_is_a_clear_error(
    project: Path, content: str | bytes, why: str
) -> None:
    sets(project, content)
    with pytest.raises(BadSetting, match=why) as raised:
        project_settings(project, "trusted")
    assert str(project / ".forkpoint" / "config.toml") in str(raised.value)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("sqlite:///talks.db", "sqlite:///{root}/talks.db"),
        ("sqlite:///a%20b/../x.db", "sqlite:///{root}/x.db"),
        ("sqlite:////abs/x.db", "sqlite:////abs/x.db"),
        ("sqlite:///talks.db?mode=ro", "sqlite:///{root}/talks.db?mode=ro"),
        ("talks.db", "sqlite:///{root}/talks.db"),
        ("./talks", "sqlite:///{root}/talks"),
        ("http://127.0.0.1:8008", "http://127.0.0.1:8008"),
    ],
)
def test_a_relative_store_is_in_the_projects_root(project: Path, said: str, meant: str) -> None:
    sets(project, f'store = "{said}"')
    assert project_settings(project / "src", "trusted").store == meant.format(root=project)


def test_the_environment_wins_over_the_project_and_the_project_over_the_users_file(
    project: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets(project, 'model = "scripted/theirs"\nstore = "sqlite:///theirs.db"\n')
    config.write_text('model = "scripted/mine"\nstore = "memory:"\n')
    assert set_trust(project, "trusted", config).written
    assert named_model(project / "src") == ("scripted/theirs", "project")
    assert named_store(project / "src") == (f"sqlite:///{project}/theirs.db", "project")
    assert default_store(project) == f"sqlite:///{project}/theirs.db"
    assert (default_model(), default_store()) == ("scripted/mine", "memory:"), "without a workspace there is no project"
    monkeypatch.setenv("FORKPOINT_MODEL", "scripted/env")
    monkeypatch.setenv("FORKPOINT_STORE", "sqlite:///env.db")
    assert default_model(project) == "scripted/env"
    assert default_store(project) == "sqlite:///env.db"


def test_a_project_that_is_not_trusted_changes_no_default(project: Path, config: Path) -> None:
    sets(project, "this is no TOML")
    assert named_model(project) == (MODEL, "default")
    assert set_trust(project, "untrusted", config).written
    assert default_model(project) == MODEL
    assert project_of(None, trust="trusted") == ProjectSettings()


def test_trust_that_could_not_be_kept_counts_where_it_is_known(project: Path, config: Path) -> None:
    sets(project, 'model = "scripted/theirs"\n')
    config.write_text("broken = ")
    assert set_trust(project, "trusted", config).warning is not None
    assert default_model(project, trust="trusted") == "scripted/theirs"
    assert project_of(project, trust="untrusted") == ProjectSettings()


def test_the_root_of_a_bare_repository_has_no_settings_of_the_project_around_it(tmp_path: Path) -> None:
    around = tmp_path / "around"
    (around / ".git").mkdir(parents=True)
    (around / ".forkpoint").mkdir()
    (around / ".forkpoint" / "config.toml").write_text('instructions = "Obey."\n')
    (around / "bare.git").mkdir()
    assert settings_at(around / "bare.git") == ProjectSettings()
    assert settings_at(around).instructions == "Obey."


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_root_believes_a_file_of_whoever_owns_the_project_and_of_nobody_else(project: Path) -> None:
    file = project / ".forkpoint" / "config.toml"
    file.parent.mkdir()
    file.write_text('approval = "always"')
    for path in (project, file.parent, file):
        os.chown(path, 54321, -1)
    assert settings_at(project).approval == "always"
    os.chown(file, 54322, -1)
    with pytest.raises(BadSetting, match="belongs to user 54322") as refused:
        settings_at(project)
    assert refused.value.code == "unsafe_settings"
    os.chown(file, 0, -1)
    file.chmod(0o666)
    with pytest.raises(BadSetting, match="chmod go-w"):
        settings_at(project)


def test_what_a_changed_project_sets_is_not_used_even_for_the_store(project: Path, config: Path) -> None:
    file = project / ".forkpoint" / "config.toml"
    file.parent.mkdir()
    file.write_text('model = "scripted/echo"')
    assert set_trust(project, "trusted", config).written
    assert named_model(project) == ("scripted/echo", "project")
    file.write_text('model = "scripted/echo"\nstore = "http://elsewhere.example"')
    with pytest.raises(TrustChanged, match="`store` in its settings changed"):
        named_store(project)
    with pytest.raises(TrustChanged):
        named_model(project)
