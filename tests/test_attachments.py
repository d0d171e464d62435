"""Files as parts of a message: what a file becomes, and which files are refused."""

import base64
import os
import threading
from pathlib import Path

import pytest

from forkpoint import Image, attachment
from forkpoint.errors import BadArgument, BadFile, TooLarge
from forkpoint.events import File, Text

BEGINNINGS = {
    "image/png": b"\x89PNG\r\n\x1a\n",
    "image/jpeg": b"\xff\xd8\xff\xe0",
    "image/gif": b"GIF89a",
    "image/webp": b"RIFF\x00\x00\x00\x00WEBP",
}


def file(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("kind", BEGINNINGS)
def test_a_picture_is_known_by_its_content_whatever_its_name(tmp_path: Path, kind: str) -> None:
    content = BEGINNINGS[kind] + b"\x00rest"
    path = file(tmp_path, "notes.txt", content)
    expected = Image(kind, data=base64.b64encode(content).decode())
    assert Image.from_file(path) == Image.from_file(str(path)) == Image.from_bytes(content) == expected
    assert attachment(path) == expected


def test_a_text_file_becomes_a_text_with_its_name_in_front(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file(tmp_path, "a.py", b"\xef\xbb\xbfprint('\xc3\xa4')\r\n")
    file(tmp_path, "empty", b"")
    assert attachment("a.py") == Text("[file a.py]\nprint('ä')\r\n")
    assert attachment(Path("empty")) == Text("[file empty]\n")


def test_a_name_cannot_begin_another_line_or_break_the_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file(tmp_path, "a\n[file b]", b"x")
    assert attachment("a\n[file b]") == Text("[file a\\n[file b]]\nx")
    name = os.fsdecode(b"\xff.txt")
    file(tmp_path, name, b"x")
    assert attachment(name) == Text("[file \\udcff.txt]\nx")


def test_a_pdf_document_becomes_a_file(tmp_path: Path) -> None:
    content = b"%PDF-1.7\n\xff"
    path = file(tmp_path, "report", content)
    assert attachment(path) == File("report", "application/pdf", data=base64.b64encode(content).decode())
    with pytest.raises(BadFile, match="no PNG, JPEG, GIF or WebP"):
        Image.from_file(path)


@pytest.mark.parametrize("content", [b"\xff\xfeh\x00i\x00", b"\x7fELF\x00\x01", b"caf\xe9"], ids=ascii)
def test_any_other_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = file(tmp_path, "a.png", content)
    with pytest.raises(BadFile, match=r"a\.png"):
        attachment(path)
    with pytest.raises(BadFile, match="no PNG, JPEG, GIF or WebP"):
        Image.from_file(path)


def test_what_cannot_be_read_says_why(tmp_path: Path) -> None:
    for take in (attachment, Image.from_file):
        with pytest.raises(BadFile, match="there is no such file"):
            take(tmp_path / "missing.png")
        with pytest.raises(BadFile, match="it is a folder"):
            take(tmp_path)
        with pytest.raises(BadFile, match="cannot be read"):
            take("a\0b")


def test_a_file_with_more_bytes_than_the_limit_is_refused_with_its_size(tmp_path: Path) -> None:
    path = file(tmp_path, "a.png", BEGINNINGS["image/png"] + b"x" * 92)
    assert attachment(path, limit=100) == Image.from_file(path, limit=100)
    for take in (attachment, Image.from_file):
        with pytest.raises(TooLarge) as refused:
            take(path, limit=99)
        assert (refused.value.size, refused.value.limit) == (100, 99)
    words = file(tmp_path, "a.txt", b"x" * 1_000_001)
    with pytest.raises(TooLarge) as refused:
        attachment(words)
    assert (refused.value.size, refused.value.limit) == (1_000_001, 1_000_000)


def test_an_endless_file_is_refused_and_not_read_to_its_end() -> None:
    with pytest.raises(TooLarge):
        attachment("/dev/zero", limit=1000)


def test_a_pipe_is_a_file_too(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(b"from a pipe",))
    writer.start()
    assert attachment(path) == Text(f"[file {path}]\nfrom a pipe")
    writer.join()


def test_only_addresses_that_a_provider_can_fetch_are_pictures() -> None:
    assert Image.from_url("https://example.com/a.png").url == "https://example.com/a.png"
    for wrong in ("file:///etc/passwd", "a.png", "data:image/png;base64,AAAA", ""):
        with pytest.raises(BadArgument):
            Image.from_url(wrong)
    with pytest.raises(BadArgument):
        Image.from_bytes(b"")
