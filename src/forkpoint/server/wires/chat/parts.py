"""Parts of a message: texts, pictures and files, as OpenAI's clients send them."""

import binascii
import re
from urllib.parse import urlsplit

from msgspec import Struct

from forkpoint.errors import Invalid, Unsupported
from forkpoint.events import File, Image, Part, Text


class SentImage(Struct, gc=False):
    url: str | None = None


class SentFile(Struct, gc=False):
    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None


class SentPart(Struct, gc=False):
    """A part as it was sent: which of its fields means anything, its type says."""

    type: str | None = None
    text: str | None = None
    refusal: str | None = None
    image_url: SentImage | str | None = None
    file: SentFile | None = None


_UNHEARD = {"input_audio": "sound cannot be heard here", "video_url": "films cannot be seen here"}
_MEDIA = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,63}/[a-z0-9][a-z0-9!#$&^_.+-]{0,127}")
_PICTURES = {
    "avif": "image/avif",
    "bmp": "image/bmp",
    "gif": "image/gif",
    "heic": "image/heic",
    "jpeg": "image/jpeg",
    "jpg": "image/jpeg",
    "png": "image/png",
    "svg": "image/svg+xml",
    "tif": "image/tiff",
    "tiff": "image/tiff",
    "webp": "image/webp",
}
_DOCUMENTS = {  # ours, and not the machine's: what a request means must not depend on where it is read
    "csv": "text/csv",
    "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "htm": "text/html",
    "html": "text/html",
    "json": "application/json",
    "md": "text/markdown",
    "pdf": "application/pdf",
    "pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    "txt": "text/plain",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "xml": "application/xml",
}


def part_of(sent: SentPart, role: str, place: str) -> Part:
    """The part that was sent. Raises `Invalid` or `Unsupported` with its place."""
    match sent.type:
        case "text":
            if sent.text is None:
                raise Invalid(f"{place}.text", "it is missing")
            return Text(sent.text)
        case "refusal" if role == "assistant":
            if sent.refusal is None:
                raise Invalid(f"{place}.refusal", "it is missing")
            return Text(sent.refusal)
        case "image_url" if role == "user":
            return _image(sent.image_url, f"{place}.image_url")
        case "file" if role == "user":
            return _file(sent.file, f"{place}.file")
        case "input_audio" | "video_url":
            raise Unsupported(f"{place}.{sent.type}", _UNHEARD[sent.type])
        case "image_url" | "file" | "refusal":
            raise Invalid(f"{place}.type", f"a message with this role takes no part of the type {sent.type}")
        case None:
            raise Invalid(f"{place}.type", "it is missing")
        case _:
            raise Invalid(f"{place}.type", "only text, image_url and file are known")


def _image(sent: SentImage | str | None, place: str) -> Image:
    url = sent.url if isinstance(sent, SentImage) else sent
    if not url:
        raise Invalid(f"{place}.url", "it is missing")
    if url[:5].lower() == "data:":
        media, data = _inline(url, f"{place}.url")
        if media is None or not media.startswith("image/"):
            raise Invalid(f"{place}.url", "its data is not said to be a picture; begin it with data:image/png;base64,")
        return Image(media, data=data)
    path = _path(url)
    if path is None:
        raise Invalid(f"{place}.url", "it must be a data: URL in base64, or begin with http:// or https://")
    return Image(_PICTURES.get(_ending(path), "image/*"), url=url)


def _file(sent: SentFile | None, place: str) -> File:
    if sent is None:
        raise Invalid(place, "it is missing")
    if sent.file_id is not None:
        raise Unsupported(f"{place}.file_id", "no files are kept here; send the file itself as file_data")
    if not sent.file_data:
        raise Invalid(f"{place}.file_data", "it is missing")
    name = sent.filename if sent.filename and sent.filename.strip() else "file"
    if sent.file_data[:5].lower() == "data:":
        media, data = _inline(sent.file_data, f"{place}.file_data")
    else:  # as OpenAI's own description has it: base64 and nothing else
        media, data = None, _checked(sent.file_data, f"{place}.file_data")
    return File(name, media or (_DOCUMENTS | _PICTURES).get(_ending(name), "application/octet-stream"), data=data)


def _inline(url: str, place: str) -> tuple[str | None, str]:
    """The type that a data: URL names, if it does, and its data, in base64."""
    head, comma, data = url[5:].partition(",")
    media, *rest = (word.strip().lower() for word in head.split(";"))
    if not comma or "base64" not in rest:
        raise Invalid(place, "a data: URL must be in base64, as in data:image/png;base64,...")
    if media and not _MEDIA.fullmatch(media):
        raise Invalid(place, "its media type is none")
    return media or None, _checked(data, place)


def _checked(data: str, place: str) -> str:
    """The same data, which is base64. Raises `Invalid` if it is not, or if there is none."""
    try:
        if not binascii.a2b_base64(data, strict_mode=True):
            raise Invalid(place, "it has no data")
    except ValueError:  # of characters that are not ASCII, too
        raise Invalid(place, "its data is not base64") from None
    return data


def _path(url: str) -> str | None:
    """The path of an address on the web; None if it is not one."""
    try:
        parts = urlsplit(url)
        return parts.path if parts.scheme in {"http", "https"} and parts.hostname else None
    except ValueError:  # brackets that are none
        return None


def _ending(name: str) -> str:
    return name.rpartition(".")[2].lower()
