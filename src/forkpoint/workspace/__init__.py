"""The folder that tools work in: which project it belongs to, and whether its user trusts that project."""

from forkpoint.workspace.project import ProjectSettings, project_settings, settings_at
from forkpoint.workspace.roots import project_root
from forkpoint.workspace.trust import Decision, Kept, Standing, Trust, set_trust, standing, trust_of

__all__ = [
    "Decision",
    "Kept",
    "ProjectSettings",
    "Standing",
    "Trust",
    "project_root",
    "project_settings",
    "set_trust",
    "settings_at",
    "standing",
    "trust_of",
]
