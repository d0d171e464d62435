"""Settings: what a conversation is run with. One document, stored with the conversation and opaque to the store.
Tests: tests/conversation/test_other_settings.py."""

import os
from pathlib import Path

import msgspec
from msgspec import Struct

from forkpoint.agent.agent import Agent
from forkpoint.agent.stored.document import bind, portable_document
from forkpoint.agent.stored.guards import with_guards_of
from forkpoint.errors import BadWorkspace, CannotResume, Item
from forkpoint.events import JsonText
from forkpoint.workspace.folders import Made


class SubAgentOf(Struct, frozen=True, omit_defaults=True):
    """What a sub-agent is to its parent. It comes back with the conversation, whoever opens it.

    ``fork`` is how much of its parent's history it began with; ``deepest`` how deep its family may go.
    """

    parent: str
    path: str
    nickname: str
    depth: int
    role: str | None = None
    task: str = ""
    fork: str | int = "none"
    deepest: int = 2
    guardian: bool = False
    agent: str | None = None  # which of its parent's other agents it is, by name
    instructions: str = ""  # of its role, if it was forked: they stand in no manifest


class Settings(Struct, frozen=True, omit_defaults=True):
    """The agent, as its JSON, and the folder that its tools work in.

    ``system`` is what a client of chat completions gave as system messages: it stands in the agent's instructions, and
    here apart, for another agent that takes over. So does ``project``, which is what a trusted project told when the
    conversation was made.

    ``made`` says how the folder was made, if that was for a fork: forks that share it and sub-agents have it too, and
    the last that works there takes it along. ``placed`` is the id of the fork that was given this folder.

    ``guarded_by`` is the root of the trusted project whose hooks and approval policy hold in the folder. A turn that
    would go on without them is refused, whatever became of the folder or of the trust in the project.
    """

    agent: msgspec.Raw = msgspec.Raw()
    workspace: str | None = None
    system: str | None = None
    sub_agent: SubAgentOf | None = None
    project: str | None = None
    made: Made | None = None
    placed: str | None = None
    guarded_by: str | None = None

    @classmethod
    def of(cls, agent: Agent | str | None, workspace: str | None, *, remote: bool = False) -> "Settings":
        """For a server an agent is data alone, or the name of one that the server has. Raises `BadAgent`."""
        if agent is None:
            return cls(workspace=workspace)
        if isinstance(agent, str):
            return cls(msgspec.Raw(msgspec.json.encode(agent)), workspace)
        return cls(msgspec.Raw((portable_document(agent) if remote else agent.to_json()).encode()), workspace)

    @classmethod
    def from_json(cls, text: JsonText) -> "Settings":
        """Raises `CannotResume` for a document that cannot be read."""
        try:
            return msgspec.json.decode(text, type=cls)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise CannotResume.of([Item("agent", "", f"is in settings that cannot be read ({error})")]) from None

    def to_json(self) -> JsonText:
        return msgspec.json.encode(self).decode()

    def at(self, other: "Settings") -> "Settings":
        """The same settings in the folder of others, with all that goes with that folder."""
        place = {"workspace": other.workspace, "made": other.made, "placed": other.placed}
        return msgspec.structs.replace(self, **place, guarded_by=other.guarded_by)

    def keeping(self, branch: "Settings") -> "Settings":
        """The settings of a conversation that keeps a branch: the branch's agent, with all else as it is here.

        The guards of the agent stay too, and so does the whole agent if the branch has none. What stands in the agent's
        instructions (``system``, ``project``) goes with the agent. Raises `CannotResume` if an agent cannot be read.
        """
        if branch.agent_json is None:
            return self
        document = branch.agent_json
        try:
            if self.agent_json is not None:
                document = with_guards_of(document, self.agent_json)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise CannotResume.of([Item("agent", "", f"cannot be read ({error})")]) from None
        agent = msgspec.Raw(document.encode())
        return msgspec.structs.replace(self, agent=agent, system=branch.system, project=branch.project)

    @property
    def agent_json(self) -> JsonText | None:
        """The agent's document; None if the conversation has none."""
        return bytes(self.agent).decode() or None

    @property
    def folder(self) -> Path | None:
        return Path(self.workspace) if self.workspace is not None else None

    def bound(self, given: Agent | None = None, *, same: bool = False) -> Agent | None:
        """The agent, its callables found again. Raises `CannotResume` with everything that is missing."""
        return None if self.agent_json is None else bind(self.agent_json, given, same=same)


def as_workspace(path: str | os.PathLike[str] | None, *, remote: bool = False) -> str | None:
    """A folder as it is stored: absolute, so that it means the same wherever a process stands.

    One of a server is a text that means something there.
    """
    if path is None:
        return None
    if remote:
        return os.fspath(path)
    folder = os.path.abspath(os.path.expanduser(path))
    if not os.path.isdir(folder):
        raise BadWorkspace(str(path), "there is no such folder")
    return folder
