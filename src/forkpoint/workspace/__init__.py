"""The folder that tools work in: which project it belongs to, and whether its user trusts that project."""

from forkpoint.workspace.project import ProjectSettings, project_settings, settings_at
from forkpoint.workspace.roots import project_root
from forkpoint.workspace.trust import Decision, Trust, TrustRecord, TrustStand, set_trust, standing, trust_of

__all__ = [
    "Decision",
    "ProjectSettings",
    "Trust",
    "TrustRecord",
    "TrustStand",
    "project_root",
    "project_settings",
    "set_trust",
    "settings_at",
    "standing",
    "trust_of",
]
