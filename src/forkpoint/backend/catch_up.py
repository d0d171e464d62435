"""A short form of all updates of a turn so far, for a listener that came late or was too slow.

Pieces of an answer are joined, pieces that became void are gone, and of a tool's progress the last word is kept. So it
is as large as what the turn says, however often it says something.
"""

from typing import TypeAlias

from msgspec.structs import replace

from forkpoint.backend.callbacks import Update
from forkpoint.updates import CallPiece, CallProgress, ReasoningPiece, Restarted, TextPiece

_Piece: TypeAlias = TextPiece | ReasoningPiece | CallPiece


class _Pieces:
    """Pieces of one thing that a model says."""

    def __init__(self, first: _Piece) -> None:
        self.first = first
        self._texts = [_text(first)]

    def takes(self, piece: _Piece) -> bool:
        match self.first, piece:
            case (CallPiece(index=one), CallPiece(index=other)) | (
                ReasoningPiece(index=one),
                ReasoningPiece(index=other),
            ):
                return one == other
            case _:
                return type(self.first) is type(piece)

    def add(self, piece: _Piece) -> None:
        self._texts.append(_text(piece))

    @property
    def whole(self) -> _Piece:
        text = "".join(self._texts)
        if isinstance(self.first, CallPiece):
            return replace(self.first, arguments=text)
        return replace(self.first, text=text)


class CatchUp:
    """What was told of a turn."""

    def __init__(self) -> None:
        self._entries: list[_Pieces | Update] = []

    def add(self, update: Update) -> None:
        match update:
            case TextPiece() | ReasoningPiece() | CallPiece():
                for entry in reversed(self._entries):
                    if not isinstance(entry, _Pieces):
                        break
                    if entry.takes(update):
                        entry.add(update)
                        return
                    if not isinstance(update, CallPiece):
                        break  # words after something else are words of their own
                self._entries.append(_Pieces(update))
            case Restarted():
                while self._entries and isinstance(self._entries[-1], _Pieces):
                    self._entries.pop()
            case CallProgress(call_id=id):
                self._entries = [
                    entry for entry in self._entries if not (isinstance(entry, CallProgress) and entry.call_id == id)
                ]
                self._entries.append(update)
            case _:
                self._entries.append(update)

    @property
    def updates(self) -> list[Update]:
        """The same as if it had been told in a few words."""
        return [entry.whole if isinstance(entry, _Pieces) else entry for entry in self._entries]


def _text(piece: _Piece) -> str:
    return piece.arguments if isinstance(piece, CallPiece) else piece.text
