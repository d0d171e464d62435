"""Errors of the store itself. Tests: tests/test_errors.py."""

from forkpoint.errors.error import ForkpointError
from forkpoint.errors.form import form


class StoreError(ForkpointError, code="store_error"):
    """The store at {path} has a problem."""

    path: str


class OutcomeUnknown(StoreError, code="outcome_unknown"):
    """Whether {what} {id} is in the store at {path} cannot be told now ({detail}).

    It is not lost and not repeated: read it once the disk answers, before you try it anew.

    Python: It is not lost and not repeated: ask again with settle() or read it once the disk answers, before you try it
    anew.

    Command line: It is not lost and not repeated: look at it with `forkpoint show` once the disk answers, before you
    try it anew.

    Chat: It is not lost and not repeated: send the very same request again in a while, with its Idempotency-Key if it
    has one.
    """

    what: str
    id: str
    detail: str


class CommitFailed(StoreError, code="commit_failed"):
    """Turn {turn} did not reach the disk of the store at {path} ({detail}): it is failed, and nothing of it is in
    history.

    Its steps and its cost are kept; resume it, or retry it, once the disk answers.

    Chat: Send the request again in a while.
    """

    turn: str
    detail: str


class StoreUnavailable(StoreError, code="store_unavailable"):
    """The store at {path} did not answer: {detail}.

    Nothing was changed; try again.
    """

    detail: str

    @form
    def store_away(self, path: str, what: str) -> None:
        """The store at {path} was not asked: it has not answered {what} lately, or too many requests wait for it
        already.

        Nothing was changed; try again in a moment.
        """
        self.detail = f"it has not answered {what} lately"

    @form
    def disk_full(self, path: str, detail: str) -> None:
        """The disk of the store at {path} is full ({detail}), and nothing was changed.

        Free some space and try again.

        Chat: Try again in a while, or tell whoever runs the server.
        """

    @form
    def store_closed(self, path: str) -> None:
        """The store at {path} was closed.

        Open it again before use.

        HTTP: Try again in a while.

        Chat: Try again in a while.
        """
        self.detail = "it was closed"

    @form
    def too_many_connections(self, path: str, detail: str) -> None:
        """The database server at {path} has no connection left ({detail}), and nothing was changed.

        Try again in a while. Raise max_connections of the server, let each process have fewer connections (?pool=4), or
        put a pooler in front of it.

        Chat: Try again in a while, or tell whoever runs the server.
        """


class CopyRefused(StoreError, code="copy_refused"):
    """{path} cannot be used for a copy of a store: {why}. Nothing was changed.

    Name another file.
    """

    why: str

    @form
    def file_exists(self, path: str) -> None:
        """{path} is there already, and it was left as it is.

        Name another file.

        Python: Name another file, or replace this one with force=True.

        Command line: Name another file, or replace this one with --force.
        """
        self.why = "it is there already"

    @form
    def store_exists(self, path: str) -> None:
        """There is a store at {path} already, and it was left as it is.

        Name another address.

        Python: Name another address, or replace it with force=True; it is kept under another name then.

        Command line: Name another address, or replace it with --force; it is kept under another name then.
        """
        self.why = "a store is there already"

    @form
    def store_in_use(self, path: str) -> None:
        """A process has the store at {path} open, so it cannot be replaced; it was left as it is.

        Stop the servers and programs that use it, and try again.
        """
        self.why = "a process has it open"

    @form
    def erasures_not_named(self, path: str) -> None:
        """With the backup {path}, what was erased after it was made would come back. Nothing was restored.

        Name the file with the receipts of what was erased since.

        Python: Name the file with the receipts of what was erased since (erasures=), or say that nothing was, or that
        it may come back (forget_erasures=True).

        Command line: Name the file with the receipts of what was erased since (--erasures FILE), or say that nothing
        was, or that it may come back (--forget-erasures).
        """
        self.why = "what was erased since is not known"

    @form
    def on_a_server(self, path: str) -> None:
        """The store of the server at {path} can only be copied on the machine that has its file.

        Make the copy there. A server may go on running while its store is backed up, and has to be stopped for a
        restore.

        Command line: Run `forkpoint backup FILE --store sqlite:///...` or `forkpoint restore` there. A server may go on
        running while its store is backed up, and has to be stopped for a restore.
        """
        self.why = "it is a server's"

    @form
    def needs_program(self, path: str, program: str, version: int, command: str) -> None:
        """{path} is written by PostgreSQL's own {program}, and that of version {version} is not on PATH here.

        Use a machine that has it: {command}
        """
        self.why = f"{program} is missing"

    @form
    def behind_a_pooler(self, path: str) -> None:
        """The store at {path} is behind a pooler, and PostgreSQL's own programs copy it past that.

        Name the database itself, without the pooler.
        """
        self.why = "it is behind a pooler"


class StoreDamaged(StoreError, code="store_damaged"):
    """The store at {path} is damaged: {detail}.

    Stop writing to it, keep a copy of the file with its -wal beside it, and restore a backup.

    Chat: Tell whoever runs the server.
    """

    detail: str

    @form
    def log_alone(self, path: str) -> None:
        """The log of the store at {path} is there ({path}-wal), and the file itself is not.

        Put the file back beside its log. If it is lost, restore a backup: forkpoint restore BACKUP --store
        sqlite:///{path} --force, which keeps the log under another name.

        Chat: Tell whoever runs the server.
        """
        self.detail = "its log (-wal) is there, and the file itself is not"

    @form
    def log_foreign(self, path: str, detail: str) -> None:
        """The log beside the store at {path} ({path}-wal) does not belong to it: {detail}.

        Do not open the store: that would mix the two for good. Put the file back that the log belongs to. If the file
        alone is what you want, move the log away: mv {path}-wal {path}-wal.old; rm -f {path}-shm

        Chat: Tell whoever runs the server.
        """

    @form
    def log_missing(self, path: str, detail: str) -> None:
        """The log of the store at {path} is not to be had: {detail}. What was committed last may have been only there.

        Put {path}-wal back beside it. If it is lost, restore a backup, or go on without it: rm -f {path}-wal {path}-shm

        Chat: Tell whoever runs the server.
        """


class StoreUnusable(StoreError, code="not_a_store"):
    """{path} is not a Forkpoint store ({detail}), and it was left untouched.

    Name another file, or remove this one if nobody needs it.

    Chat: Tell whoever runs the server.
    """

    detail: str

    @form
    def read_only(self, path: str, detail: str) -> None:
        """The store at {path} cannot be written ({detail}).

        Check the owner and mode of the file and its folder, and that the disk is not mounted read-only.

        Chat: Tell whoever runs the server.
        """

    @form
    def opened_to_read(self, path: str, detail: str) -> None:
        """The store at {path} is open for reading only ({detail}), and nothing was changed.

        Open it where it can be written, without ?mode=ro.

        HTTP: This server lets nobody change anything. Use another one.

        Chat: This server lets nobody change anything. Use another one.
        """

    @form
    def store_older(self, path: str, found: int, known: int) -> None:
        """The store at {path} has format {found}, and this version reads format {known}. Nothing may be written there,
        so the store cannot be migrated.

        Copy the file, and its -wal if there is one, to a folder that you can write, and open the copy there: that
        migrates it.

        Chat: Tell whoever runs the server.
        """
        self.detail = f"it has format {found}"

    @form
    def log_not_readable(self, path: str, detail: str) -> None:
        """The store at {path} was not closed, and its log (-wal) cannot be read where nothing may be written
        ({detail}).

        Copy the file and its -wal to a folder that you can write, and open the copy there.

        Chat: Tell whoever runs the server.
        """

    @form
    def store_newer(self, path: str, found: int, known: int) -> None:
        """The store at {path} has format {found}, which only a newer Forkpoint may use (this one knows up to {known});
        it was left untouched.

        Upgrade Forkpoint.

        Chat: Tell whoever runs the server.
        """
        self.detail = f"it has format {found}"

    @form
    def other_tables(self, path: str, detail: str) -> None:
        """The database at {path} is not a Forkpoint store ({detail}), and it was left untouched.

        Name an empty database; or an empty schema of this one: ?options=-csearch_path%3Dforkpoint

        Chat: Tell whoever runs the server.
        """

    @form
    def unfit_database(self, path: str, detail: str) -> None:
        """The database at {path} cannot hold a store: {detail}.

        Name another database, or mend this one.

        Chat: Tell whoever runs the server.
        """

    @form
    def missing_rights(self, path: str, detail: str) -> None:
        """The role that was used at {path} may not do this: {detail}.

        Use the role that made the tables, or let it grant its rights on them.

        Chat: Tell whoever runs the server.
        """

    @form
    def login_refused(self, path: str, detail: str) -> None:
        """The database server at {path} refuses the connection: {detail}.

        Check the role, its password and the name of the database in the address.

        Chat: Tell whoever runs the server.
        """

    @form
    def pooler_not_named(self, path: str, detail: str) -> None:
        """The address {path} is a connection pooler's, which gives each transaction to another session ({detail}).
        Nothing was changed.

        Say so in the address: ?pooler=transaction

        Chat: Tell whoever runs the server.
        """

    @form
    def other_event_loop(self, path: str) -> None:
        """The store at {path} can only be used on asyncio, because its driver knows no other event loop.

        Run the program with asyncio, or use the address of a `forkpoint serve`.

        Chat: Tell whoever runs the server.
        """
        self.detail = "it needs asyncio"

    @form
    def network_file_system(self, path: str, kind: str) -> None:
        """The store at {path} would stand on a network file system ({kind}), where SQLite cannot keep its promises.

        Use a local disk. For several machines, run `forkpoint serve` on the one that has the disk, and use its address.

        Chat: Tell whoever runs the server.
        """
        self.detail = kind
