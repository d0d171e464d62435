"""What trust in a workspace changes for a conversation's agent, and where decisions about trust are kept.

What the user's file says of a project holds for everybody, and an "untrusted" there is never overridden. What could
not be written there is remembered here, for as long as the place is open: of one conversation with its forks and
sub-agents, or of all conversations of a place. Nothing here ever fails because something could not be kept.

- An **untrusted** workspace: nothing of the project is read, and risky tools ask first, whatever the agent's policy.
- A **trusted** one: its instructions stand after the agent's own in each conversation that is made there, and are
  stored with it, so that its prompts stay as they are; its approval policy is asked beside the agent's own, and its
  hooks run after the agent's own, and its MCP servers are used beside the agent's own, as long as it is trusted.
- An **undecided** one: nothing of the project is read, and the agent's own policy holds.

**Trust is of content.** A trusted project is used only if what it runs is what was approved: the digest of what is
pinned (`workspace.pins`) stands in the user's file, is remembered here, or in the environment. Everything that is used
of a project goes through `_Project`, which raises `TrustChanged` otherwise.
"""

import copy
import functools
import logging
import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

import anyio.to_thread
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from forkpoint.agent.agent import Agent
from forkpoint.agent.approval import Policy, policies
from forkpoint.agent.hooks.hook import Hook, hooks_of, project_hooks
from forkpoint.agent.mcp import Offered, offered_of, project_servers
from forkpoint.agent.skills.files import instructions_in
from forkpoint.backend.options import Draft
from forkpoint.backend.settings import Settings
from forkpoint.errors import BadAgent, BadArgument, BadSetting, TrustChanged
from forkpoint.lru import Lru
from forkpoint.workspace import Decision, ProjectSettings, Trust, TrustStand, set_trust, settings_at, standing
from forkpoint.workspace.defaults import settings_file
from forkpoint.workspace.folders import origin_of, printable
from forkpoint.workspace.pins.pins import (
    APPROVED,
    NOTHING,
    Pinned,
    PinnedCommand,
    is_approved,
    is_approved_here,
    pinned_at,
    pinned_of,
)
from forkpoint.workspace.project import settings_of
from forkpoint.workspace.roots import checkout_and_root
from forkpoint.workspace.trust import unapproved, with_digest

_log = logging.getLogger("forkpoint")

_DECISIONS = 10_000  # that could not be written, of families

_REMEMBERED = 1024  # folders, projects, and agents with a stricter policy

_Signature: TypeAlias = tuple[int, ...] | None
"""What changes with a file; None if there is none."""


class _Kept(Struct, frozen=True):
    """A decision that could not be written, and the digests that were approved with it."""

    decision: Decision
    pinned: tuple[str, ...] = ()


class _Project(Struct, frozen=True):
    """How a project stands; what it sets, if it is trusted and approved, and nothing otherwise."""

    trust: Trust = "undecided"
    settings: ProjectSettings = ProjectSettings()
    hooks: tuple[Hook, ...] = ()
    servers: tuple[Offered, ...] = ()
    pinned: Pinned | None = None

    @property
    def guarded_by(self) -> str | None:
        """The root of the project, if it is trusted and sets anything that somebody had to approve."""
        return None if self.pinned is None or self.pinned.digest == NOTHING else self.pinned.root


class Trusting:
    """How a place's conversations stand to the folders that they work in."""

    def __init__(self, config: Callable[[], Path] = settings_file) -> None:
        self._config = config  # where the user's file is
        self.is_shared = False  # with tenants: what its user keeps for himself is not theirs
        self._everywhere: dict[str, _Kept] = {}  # of projects, as it could not be written
        self._families: dict[tuple[str, str], _Kept] = {}  # the same for one family, by its id and the project
        self._warnings: Lru[str, str | None] = Lru(_REMEMBERED)  # by family
        self._standings: Lru[tuple[Path, ...], tuple[_Signature, TrustStand]] = Lru(_REMEMBERED)
        self._projects: Lru[tuple[Path, str], tuple[tuple[_Signature, ...], _Project]] = Lru(_REMEMBERED)
        self._strict: Lru[tuple[object, ...], tuple[Agent, Agent]] = Lru(_REMEMBERED)

    def within(self) -> "Trusting":
        """The same for another tenant: what is known of folders is shared, what was said of families is not."""
        other = copy.copy(self)
        other._families, other._warnings = {}, Lru(_REMEMBERED)
        other.is_shared = True
        return other

    def of(self, folder: str | os.PathLike[str], family: str | None = None, wish: bool | None = None) -> Trust:
        """How a folder stands for a family. ``wish`` is what somebody is about to say of it.

        It costs one look at the user's file if there is none, and little more if it has not changed.
        """
        return self._look(folder, family, wish)[0]

    def keep(self, folder: str | os.PathLike[str], trusted: bool, family: str | None = None) -> str | None:
        """Keeps what somebody says of a folder's project, in the user's file, or else here.

        A trusted project is trusted with what it runs now. It holds for a family, or for all of the place. Gives the
        warning, which was logged too, if it is not kept or does not hold: an explicit "untrusted" stays. Raises
        nothing, but `BadSetting` if others can write the user's file.
        """
        config = self._config()
        found = standing(folder, config)
        wanted: Decision = "trusted" if trusted else "untrusted"
        warning = None
        before = (self._everywhere.get(found.root), self._families.get((family or "", found.root)))
        pinned = _pinned_now(folder) if trusted else None
        is_said = found.trust == wanted and found.decided_for is not None
        if pinned is not None and not is_approved(pinned.digest, found.pinned):
            is_said = False
        if trusted and any(one is not None and one.decision == "untrusted" for one in before):
            said = f"it was said before that {found.root} is untrusted"  # as if it had been written
            warning = f"{found.root} is not trusted: {said}. `forkpoint trust {shlex.quote(found.root)}` changes that"
        elif trusted and found.trust == "untrusted":
            said = f"{config} says that {found.decided_for or found.root} is untrusted"
            warning = f"{found.root} is not trusted: {said}. `forkpoint trust {shlex.quote(found.root)}` changes that"
        elif not is_said and (kept := set_trust(folder, wanted, config, pinned)).warning is not None:
            had = next((one.pinned for one in reversed(before) if one is not None and trusted), ())
            digests = had if pinned is None else with_digest((*had, *found.pinned), pinned.digest) or (pinned.digest,)
            self._remember_here(family, found.root, _Kept(wanted, digests if trusted else ()))
            whom = "Everything here" if family is None else "This conversation"
            why = kept.warning.rstrip(".")
            warning = f"{why}. {whom} goes on as if it had been kept: {found.root} is {wanted}"
        else:
            self._remember_here(family, found.root, None)
        if warning is not None:
            warning = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in warning)  # names can have any
            _log.warning("%s", warning)
        if family is not None:
            self._warnings.put(family, warning)
        return warning

    def warning(self, family: str) -> str | None:
        """What was to be said when a family's trust was last to be kept."""
        return self._warnings.get(family)

    async def keep_for(self, draft: Draft | None) -> None:
        """Keeps what the maker of a new conversation says of its workspace."""
        if draft is not None and draft.trust is not None and draft.settings.workspace is not None:
            folder, trusted, family = draft.settings.workspace, draft.trust, draft.id
            await anyio.to_thread.run_sync(self.keep, folder, trusted, family)

    def check(self, settings: Settings, family: str | None = None, wish: bool | None = None) -> None:
        """Raises `TrustChanged` if the folder's project is trusted, and is not what was approved; or if the folder has
        lost the guards of its project.

        Whoever says now that it is trusted (``wish``) means what is there. Settings that cannot be used are no change:
        the turn that meets them says so. Raises `BadSetting` if others can write the settings.
        """
        try:
            if settings.workspace is not None:
                self._project(settings.workspace, family, wish, settings.guarded_by)
        except BadSetting as error:
            if error.code == BadSetting.unsafe_settings.code:
                raise

    def prepared(self, draft: Draft, agent: Agent | None) -> tuple[Draft, Agent | None]:
        """A new conversation as it is to be made, and who answers there: as if what is said of its trust were kept.

        The same given twice is changed once. Raises `BadArgument`, `BadSetting` or `TrustChanged`.
        """
        folder = draft.settings.workspace
        if folder is None:
            check_trust(draft.trust, None)
        elif draft.asked is None and agent is not None and draft.settings.agent_json is not None:
            project = self._project(folder, draft.id, draft.trust)
            settings = replace(draft.settings, guarded_by=project.guarded_by)
            if told := _told(project, folder):
                agent = with_project(agent, told)
                settings = replace(settings, agent=msgspec.Raw(agent.to_json().encode()), project=told)
            return replace(draft, settings=settings, asked=draft.settings), agent
        return replace(draft, asked=draft.asked or draft.settings), agent

    def guarded(self, settings: Settings, family: str | None, wish: bool | None = None) -> Settings:
        """The settings as they hold from here on: they name the project that guards their folder now.

        Raises `BadSetting` or `TrustChanged`.
        """
        if settings.workspace is None:
            return settings
        project = self._project(settings.workspace, family, wish, settings.guarded_by)
        if project.guarded_by in (None, settings.guarded_by):
            return settings
        return replace(settings, guarded_by=project.guarded_by)

    def projects(self, folder: str | os.PathLike[str] | None, family: str | None = None) -> tuple[Path, ...]:
        """The folders of the project that a folder belongs to, if it is trusted: its checkout, then its root."""
        if folder is None or self.of(folder, family) != "trusted":
            return ()
        return tuple(dict.fromkeys(checkout_and_root(origin_of(folder))))

    def strict(
        self,
        agent: Agent,
        folder: str | os.PathLike[str] | None,
        family: str | None = None,
        guarded_by: str | None = None,
    ) -> Agent:
        """The agent as it may work in a folder: it asks before what the folder's trust, or its project, wants asked.

        The hooks of a trusted project run after its own. Raises `BadSetting`; and `TrustChanged` if the project is not
        what was approved, or if the conversation would lose the guards that it had (``guarded_by``).
        """
        if folder is None:
            return agent
        project = self._project(folder, family, guarded_by=guarded_by)
        trust = project.trust
        asks: Policy = "risky" if trust == "untrusted" else project.settings.approval or "never"
        if asks == "never" and not project.hooks:
            return agent
        unattended = "deny" if trust == "untrusted" else agent.unattended  # and not run because nobody looks
        pins = tuple(hook.pinned for hook in project.hooks)
        # The agent is held in the value, so that nobody else can have its id.
        key = (id(agent), asks, trust == "untrusted", project.hooks, pins)
        if (known := self._strict.get(key)) is None:
            approval = agent.approval if asks == "never" else (asks, *policies(agent.approval))
            hooks = hooks_of((*agent.hooks, *project.hooks))
            known = (agent, agent.replace(approval=approval, unattended=unattended, hooks=hooks))
            self._strict.put(key, known)
        return known[1]

    def served(
        self,
        servers: tuple[Offered, ...],
        folder: str | os.PathLike[str] | None,
        family: str | None = None,
        *,
        begins: bool = True,
    ) -> tuple[tuple[Offered, ...], Mapping[str, PinnedCommand]]:
        """The MCP servers that an agent has in a folder: its own, and those of the folder's project if it is trusted.

        A turn that ``begins`` has those that the project names now, as far as the agent has none of that name. A turn
        that goes on has those that it began with, as far as they are still approved. With them come the pinned commands
        of the project's servers, by their names. Raises `BadSetting` or `TrustChanged`.
        """
        own = tuple(one for one in servers if one.project is None)
        if folder is None:
            return own, {}
        project = self._project(folder, family)
        if project.pinned is None:
            return own, {}
        pins = {one.name: one for one in project.pinned.commands if one.kind == "mcp"}
        named = {(one.server, one.project) for one in project.servers}
        if not begins:
            return tuple(one for one in servers if one.project is None or (one.server, one.project) in named), pins
        known = {(one.server, one.project): one for one in servers}
        taken = {one.server.name for one in own}
        theirs = [known.get((one.server, one.project), one) for one in project.servers if one.server.name not in taken]
        return offered_of((*own, *theirs)) if theirs else own, pins

    def _remember_here(self, family: str | None, root: str, kept: _Kept | None) -> None:
        """Remembers a decision that could not be written, in the place of an earlier one."""
        if family is not None:
            self._families.pop((family, root), None)
            if kept is not None:
                self._families[family, root] = kept
                if len(self._families) > _DECISIONS:  # who was trusted asks again; who was not stays untrusted
                    oldest = next((key for key, said in self._families.items() if said.decision == "trusted"), None)
                    self._families.pop(oldest or (family, root), None)
        else:
            self._everywhere.pop(root, None)
            if kept is not None:
                self._everywhere[root] = kept

    def _look(
        self, folder: str | os.PathLike[str], family: str | None, wish: bool | None = None
    ) -> tuple[Trust, Path, tuple[str, ...]]:
        """How a folder stands; the root of its project, if that was looked for; and what was approved of it."""
        config = self._config()
        signature = _signature(config)
        is_named = bool(os.environ.get(APPROVED, "").strip())
        if signature is None and wish is None and not self._everywhere and not self._families and not is_named:
            return "undecided", Path(folder), ()
        here = origin_of(folder)
        checkout, root = checkout_and_root(here)
        kept = (self._everywhere.get(str(root)), self._families.get((family or "", str(root))))
        said: set[Trust | None] = {_decision(wish), *(one.decision for one in kept if one is not None)}
        approved = tuple(digest for one in kept if one is not None for digest in one.pinned)
        if is_named:
            found = standing(folder, config)  # what the environment approves depends on what is there
        elif signature is not None:
            found = self._standing((here, checkout, root), config, signature)
        else:
            found = None
        if found is not None:
            said.add(found.trust)
            approved += found.pinned
        return "untrusted" if "untrusted" in said else "trusted" if "trusted" in said else "undecided", root, approved

    def _project(
        self,
        folder: str | os.PathLike[str],
        family: str | None,
        wish: bool | None = None,
        guarded_by: str | None = None,
    ) -> _Project:
        """What the folder's project sets, if it is trusted. Raises `BadSetting` if its file cannot be used, and
        `TrustChanged` if it is not what was approved.

        If the conversation is ``guarded_by`` a project, the folder must still belong to it, and it must be trusted:
        otherwise its guards would be gone without a word. Who distrusts the folder has decided.
        """
        trust, root, approved = self._look(folder, family, wish)
        if guarded_by is not None and trust != "untrusted":
            _check_guards(folder, guarded_by, root if trust == "trusted" else None)
        if trust != "trusted":
            return _Project(trust)
        project = self._project_at(root, os.path.realpath(folder))
        assert project.pinned is not None
        if wish is not True and not is_approved_here(project.pinned.digest, approved):
            raise unapproved(project.pinned, approved, self._config())
        return project

    def _project_at(self, root: Path, folder: str) -> _Project:
        """What a project sets, and what is pinned of it. It is read again if anything changed that decides it."""
        known = self._projects.get((root, folder))
        if known is not None:
            pinned = known[1].pinned
            assert pinned is not None
            if known[0] == _signatures(root, pinned):
                return known[1]
        before = _signature(settings_of(root))
        settings = settings_at(root)
        pinned = pinned_of(settings, root, folder)
        hooks = tuple(_with_pin(hook, pinned) for hook in _hooks(settings, root))
        project = _Project("trusted", settings, hooks, _servers(settings, root), pinned)
        signatures = _signatures(root, pinned)
        if signatures[0] == before:  # or it changed while it was read, and is read again the next time
            self._projects.put((root, folder), (signatures, project))
        return project

    def _standing(self, folders: tuple[Path, ...], config: Path, signature: _Signature) -> TrustStand:
        """What the user's file says of a folder. While it cannot be read, what was untrusted stays so."""
        known = self._standings.get(folders)
        if known is None or known[0] != signature:
            found = standing(folders[0], config)
            if found.warning is not None:
                _log.warning("%s", found.warning)
                if known is not None and known[1].trust == "untrusted":
                    found = known[1]
            known = (signature, found)
            self._standings.put(folders, known)
        return known[1]


def check_trust(trust: bool | None, workspace: str | None, where: str = "Conversation()") -> None:
    """Raises `BadArgument` if ``trust`` is not a bool, or there is no folder to trust."""
    if trust is not None and type(trust) is not bool:
        raise BadArgument(where, f"trust={trust!r}", "it is True, False or None")
    if trust is not None and workspace is None:
        raise BadArgument(where, f"trust={trust}", "there is no workspace here to trust; name one where it is made")


def with_project(agent: Agent, told: str | None) -> Agent:
    """The agent with what a project tells it, after its own instructions; itself if it has that already."""
    if not told or f"\n\n{agent.instructions}".endswith(f"\n\n{told}"):
        return agent
    return agent.replace(instructions=joined(agent.instructions, told))


def joined(instructions: str, told: str | None) -> str:
    """An agent's own instructions, and then what a project tells."""
    return "\n\n".join(text for text in (instructions, told) if text)


def taken_over(settings: Settings, agent: Agent) -> tuple[Settings, Agent]:
    """The settings of a conversation in which another agent answers from here on, and that agent.

    What the project told when the conversation was made holds for it too.
    """
    agent = with_project(agent, settings.project)
    return replace(settings, agent=Settings.of(agent, None).agent), agent


def _told(project: _Project, folder: str) -> str:
    """What a trusted project tells: in its settings, and in its ``AGENTS.md``."""
    if project.pinned is None:
        return ""
    here = origin_of(folder)  # what agents wrote in a folder that was made for a fork tells them nothing
    found = instructions_in(checkout_and_root(here)[0], here)
    for problem in found.problems:
        _log.warning("%s", problem)
    return joined((project.settings.instructions or "").strip(), found.text)


def _check_guards(folder: str | os.PathLike[str], guarded_by: str, trusted: Path | None) -> None:
    """Raises `TrustChanged.guards_lost` if a folder has left the project that guards it, or nobody trusts it any more.

    ``trusted`` is the root of the project that the folder belongs to, if somebody trusts that.
    """
    if str(trusted) == guarded_by:
        return
    here, root = printable(folder), trusted or checkout_and_root(origin_of(folder))[1]
    why = f"its folder {here} belongs to {printable(root)} now"
    if str(root) == guarded_by:
        why = "nobody trusts what is there now"
    raise TrustChanged.guards_lost(printable(guarded_by), here, why)


def _hooks(said: ProjectSettings, root: Path) -> tuple[Hook, ...]:
    """The hooks of a project. Raises `BadSetting`."""
    try:
        return project_hooks(msgspec.json.decode(said.hooks), root) if said.hooks is not None else ()
    except BadAgent as error:
        raise BadSetting.broken_settings(f"hooks in {settings_of(root)}", error.why) from None


@functools.lru_cache(maxsize=64)
def _servers(said: ProjectSettings, root: Path) -> tuple[Offered, ...]:
    """The MCP servers of a project. Raises `BadSetting`."""
    try:
        return project_servers(msgspec.json.decode(said.mcp), root) if said.mcp is not None else ()
    except BadAgent as error:
        raise BadSetting.broken_settings(f"mcp in {settings_of(root)}", error.why) from None


def _with_pin(hook: Hook, pinned: Pinned) -> Hook:
    """A hook of a project, with the files that it names."""
    assert hook.command is not None
    found = pinned.command_of("hook", hook.moment, hook.command)
    assert found is not None, "what is run of a project is pinned"
    return hook.with_pin(found)


def _pinned_now(folder: str | os.PathLike[str]) -> Pinned | None:
    try:
        return pinned_at(folder)
    except BadSetting:  # whoever uses it says so
        return None


def _decision(wish: bool | None) -> Decision | None:
    return None if wish is None else "trusted" if wish else "untrusted"


def _signatures(root: Path, pinned: Pinned) -> tuple[_Signature, ...]:
    """What changes with a project: its settings first, then every path that decided what is pinned."""
    return tuple(_signature(path) for path in (settings_of(root), *map(Path, pinned.looked_at)))


def _signature(path: Path) -> _Signature:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    except OSError as error:  # what is wrong is said when it is read
        return (error.errno or 0,)
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_dev
