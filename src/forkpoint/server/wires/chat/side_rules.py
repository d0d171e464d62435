"""Side rules: which requests of known clients are asked beside a conversation. They are data: side_rules.toml."""

import tomllib
from collections.abc import Collection, Mapping, Sequence
from importlib.resources import files

import msgspec
from msgspec import Struct

from forkpoint.server.settings import SideClient
from forkpoint.wire.chat_messages import ClientMessage


class HeaderFeature(Struct, frozen=True, forbid_unknown_fields=True):
    """A header with one of some values."""

    name: str
    values: tuple[str, ...]


class SideRule(Struct, frozen=True, forbid_unknown_fields=True):
    """How one kind of request of one client is recognised. All that it says must hold: side_rules.toml explains it."""

    client: SideClient
    asks: str
    alone: bool = False
    begins: str = ""
    has: tuple[str, ...] = ()
    ends: str = ""
    system: str = ""
    header: HeaderFeature | None = None

    def fits(self, messages: Sequence[ClientMessage], headers: Mapping[str, str]) -> bool:
        """Whether a request is of this kind."""
        if self.header is not None and headers.get(self.header.name, "").strip() not in self.header.values:
            return False
        if self.alone and len(messages) != 1:
            return False
        if self.system and not (messages[0].role == "system" and messages[0].text.startswith(self.system)):
            return False
        if not (self.begins or self.has or self.ends):
            return True
        text = next((one.text for one in messages if one.role != "system"), messages[-1].text)
        begins = text.startswith(self.begins)  # nearly every message is told apart by this
        return begins and text.rstrip().endswith(self.ends) and all(words in text for words in self.has)


class SideRules:
    """The rules of the clients that a server knows."""

    def __init__(self, clients: Collection[SideClient]) -> None:
        self._rules = tuple(rule for rule in RULES if rule.client in clients)

    def find(self, messages: Sequence[ClientMessage], headers: Mapping[str, str]) -> SideRule | None:
        """The rule that a request fits, or None: then nobody says that it is asked beside the conversation."""
        return next((rule for rule in self._rules if rule.fits(messages, headers)), None)


class _RuleFile(Struct, frozen=True, forbid_unknown_fields=True):
    rule: tuple[SideRule, ...]


RULES: tuple[SideRule, ...] = msgspec.convert(
    tomllib.loads(files(__package__).joinpath("side_rules.toml").read_text("utf-8")), _RuleFile
).rule
"""All rules that there are."""
