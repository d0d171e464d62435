"""Why an optional part cannot be used: each reason is told apart, and has a remedy of its own."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from forkpoint.errors import ExtraBroken, ExtraMissing, LibraryMissing
from forkpoint.system import extras

GOMP = "libgomp.so.1: cannot open shared object file: No such file or directory"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes a package that an extra brings, and that does this when it is imported."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(extras.MODULES, "local", ("pretended_engine",))
    monkeypatch.delitem(sys.modules, "pretended_engine", raising=False)

    def make(content: str) -> None:
        (tmp_path / "pretended_engine").mkdir()
        (tmp_path / "pretended_engine" / "__init__.py").write_text(content)

    return make


def load() -> None:
    extras.load("local", "local/smollm2")


def test_a_package_that_is_not_installed_is_named_by_its_extra(package: Callable[[str], None]) -> None:
    with pytest.raises(ExtraMissing, match=r"pip install 'forkpoint\[local\]'"):
        load()


def test_a_package_that_lacks_a_package_of_its_own_is_mended_by_the_extra_too(package: Callable[[str], None]) -> None:
    package("import nobody_has_this")
    with pytest.raises(ExtraMissing):
        load()


def test_a_missing_system_library_is_named_with_the_command_that_brings_it(
    package: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(f"raise ImportError({GOMP!r})")
    (tmp_path / "apt-get").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LibraryMissing) as error:
        load()
    assert error.value.library == "libgomp.so.1"
    assert "local/smollm2 needs the system library libgomp.so.1, which is not installed" in str(error.value)
    assert "apt-get update; apt-get install -y --no-install-recommends libgomp1" in str(error.value)


def test_a_library_that_nobody_knows_a_package_for_is_still_named(package: Callable[[str], None]) -> None:
    package(f"raise ImportError({GOMP.replace('gomp', 'nobody')!r})")
    with pytest.raises(LibraryMissing, match=r"libnobody\.so\.1.*with the package manager of your system"):
        load()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("raise ImportError", "ImportError"),
        ("from pretended_engine import nothing", "cannot import name 'nothing'"),
        ("import pretended_engine.half", "No module named 'pretended_engine.half'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def", "SyntaxError"),
    ],
)
def test_a_package_that_is_broken_is_never_called_missing(
    package: Callable[[str], None], content: str, why: str
) -> None:
    package(content)
    with pytest.raises(ExtraBroken) as error:
        load()
    assert error.value.package == "pretended_engine"
    assert why in error.value.why


def test_a_module_that_python_itself_lacks_is_not_called_a_missing_package(
    package: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "_ctypes", None)
    package("import _ctypes")
    with pytest.raises(ExtraBroken, match="_ctypes"):
        load()


def test_an_empty_folder_is_not_a_package(package: Callable[[str], None], tmp_path: Path) -> None:
    (tmp_path / "pretended_engine").mkdir()
    with pytest.raises(ExtraMissing):
        load()


def test_the_package_that_is_broken_is_named_and_not_the_one_that_needs_it(
    package: Callable[[str], None], tmp_path: Path
) -> None:
    package("import pretended_part")
    (tmp_path / "pretended_part.py").write_text("raise ImportError('cut off')")
    with pytest.raises(ExtraBroken, match="the package pretended_part, which is installed but cannot be loaded"):
        load()


def test_what_was_missing_can_be_loaded_once_it_is_there(package: Callable[[str], None]) -> None:
    assert not extras.is_loaded("local")
    with pytest.raises(ExtraMissing):
        load()
    package("ready = True")
    load()
    assert extras.is_loaded("local")


@pytest.mark.parametrize("extra", ["local", "mcp", "server"])
def test_every_extra_can_be_loaded_here(extra: str) -> None:
    extras.load(extra, "A test")
    assert extras.is_loaded(extra)
