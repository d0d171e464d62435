"""The templates that a shell offers after ``--template``. Tests: tests/cli/test_completion.py."""


def known_templates() -> list[tuple[str, str]]:
    """The templates of the user's settings, and of the trusted project here, with what each is."""
    from forkpoint.workspace.templates import templates_of

    return [(name, one.message or one.instructions or "") for name, one in templates_of(".").items()]
