"""The agent's memory over restarts, in one SQLite file that daemon and CLI share.

While the daemon lives, the copy in its memory is the truth: a disk that fails costs durability and nothing else. What could not be
written is written with the first save after the disk is back. The CLI's side (holds, requests to re-arm, the board) are the functions
at the end.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import sqlite3
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TypeVar

from guestward.adapters import codec
from guestward.model.events import Event
from guestward.model.guest import GuestId
from guestward.model.memory import GuestMemory, Hold, NodeMemory
from guestward.model.reading import Reading, Unreadable
from guestward.model.task import bounded
from guestward.ports import Board, Journal

FILE = "guestward.db"
KEPT_CORRUPT = 3
BUSY_S = 1.0
_IN_PLACE = "mode=ro"  # with the locks and with what is in the WAL; leaves an empty one behind where there is none
_AS_IT_LIES = "mode=ro&immutable=1"  # the file alone: it needs nothing but to be allowed to read it
T = TypeVar("T")

# One entry a version; each brings a file from the version before to its own. What is written down must stay readable: a change of
# GuestMemory, NodeMemory or Hold other than a new field with a default needs an entry here.
_MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
        "INSERT INTO meta VALUES ('id', lower(hex(randomblob(8))))",
        "CREATE TABLE node (one INTEGER PRIMARY KEY CHECK (one = 1), memory TEXT NOT NULL)",
        "CREATE TABLE guest (id TEXT PRIMARY KEY, memory TEXT NOT NULL) WITHOUT ROWID",
        "CREATE TABLE hold (vmid INTEGER PRIMARY KEY, hold TEXT NOT NULL)",
        "CREATE TABLE rearm (vmid INTEGER PRIMARY KEY)",
        "CREATE TABLE board (one INTEGER PRIMARY KEY CHECK (one = 1), board TEXT NOT NULL)",
    ),
)
VERSION = len(_MIGRATIONS)
_WHOLE_NODE = 0  # the `vmid` of the node's own hold in the table; no guest has it
_LEAST_BYTES = 512
_PUT_HOLD = "INSERT OR REPLACE INTO hold VALUES (?, ?)"
_KEEP_HOLD = "INSERT OR IGNORE INTO hold VALUES (?, ?)"
_DAMAGE = frozenset({sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_MISMATCH})
_OWNER = "check that folder and file belong to the service's user"
_ADVICE = {
    sqlite3.SQLITE_FULL: "free some space there",
    sqlite3.SQLITE_READONLY: f"find out why it is read-only; {_OWNER}",
    sqlite3.SQLITE_CANTOPEN: _OWNER,
    sqlite3.SQLITE_PERM: _OWNER,
    sqlite3.SQLITE_BUSY: "find out which process keeps it locked (`fuser -v`)",
    sqlite3.SQLITE_IOERR: "look at the disk and at its free space",
}
_NOT_DURABLE = "forgotten at a restart, and new holds and re-arm requests are not seen; tried again with every sweep"
_COPIES = (None, "/dev/shm")  # noqa: S108 - where a copy can be looked at: the usual folder for such, and one that is no disk


class StoreUnavailable(Exception):
    """The state could not be read or written. The message is one line for people; `advice` is what they can do about it."""

    def __init__(self, message: str, advice: str = "") -> None:
        """advice: may be empty."""
        super().__init__(message)
        self.message, self.advice = message, advice


class _Damaged(StoreUnavailable):
    """The file is there and can be read, but it is no state of ours."""


@dataclass(slots=True)
class _Memory:
    """What a file held. node is None when the agent has never saved anything in it. unknown: why it may hold more holds, or empty.

    file_id: whose the holds are, where that could be read.
    """

    node: NodeMemory | None = None
    guests: dict[GuestId, GuestMemory] = field(default_factory=dict)
    holds: tuple[Hold, ...] = ()
    unknown: str = ""
    file_id: str = ""


@dataclass(frozen=True, slots=True)
class _Found:
    """Holds that a file shows to one who may not or cannot use it. missing: why there may be others, or empty."""

    holds: tuple[Hold, ...] = ()
    missing: str = ""
    file_id: str = ""


class SqliteStore:
    """`ports.Store` on a SQLite file. May be used from several threads. A call waits for BUSY_S at most, in rare cases for twice that."""

    def __init__(self, folder: Path, journal: Journal) -> None:
        """Open the file, or make it; whatever goes wrong is told, and memory begins with what could be read."""
        self._file = folder / FILE
        self._journal = journal
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self._file_id = ""
        self._memory = _Memory(unknown="not read yet")
        self._unsaved: set[GuestId] = set()
        self._forgotten: set[GuestId] = set()
        self._saved_node: NodeMemory | None = None
        self._rewrite = True
        self._ended: set[Hold] = set()
        self._failing: set[str] = set()
        with self._lock:
            self._begin()
        self._empty = self._memory.node is None

    def node(self) -> NodeMemory:
        """What is remembered of the node."""
        with self._lock:
            return self._memory.node or NodeMemory()

    def guests(self) -> dict[GuestId, GuestMemory]:
        """What is remembered of every guest."""
        with self._lock:
            return dict(self._memory.guests)

    def begins_empty(self) -> bool:
        """Whether there was no readable memory when it was opened."""
        return self._empty

    def save(self, node: NodeMemory, changed: Iterable[GuestMemory], forgotten: Iterable[GuestId]) -> None:
        """Remember, and write all that is not written yet in one durable transaction."""
        with self._lock:
            self._memory.node = node
            for memory in changed:
                self._memory.guests[memory.id] = memory
                self._unsaved.add(memory.id)
                self._forgotten.discard(memory.id)
            for guest in forgotten:
                self._memory.guests.pop(guest, None)
                self._unsaved.discard(guest)
                self._forgotten.add(guest)
            if self._attempt("save", self._write_memory):
                self._worked("open", "save")

    def holds(self) -> Reading[tuple[Hold, ...]]:
        """All holds written down; the last known ones when they cannot be read, Unreadable as long as they never could be."""
        with self._lock:
            if self._attempt("holds", self._read_holds):
                self._worked("holds")
            elif self._memory.unknown:
                rest = _rest(self._file)
                self._memory.holds, self._memory.unknown, self._file_id = rest.holds, rest.unknown, rest.file_id
            if self._ended:
                self.drop_holds(())
            return Unreadable(self._memory.unknown) if self._memory.unknown else self._memory.holds

    def drop_holds(self, holds: Iterable[Hold]) -> None:
        """Delete holds that have ended. One that cannot be deleted is not shown again, and is deleted later."""
        with self._lock:
            self._ended.update(holds)
            self._memory.holds = tuple(hold for hold in self._memory.holds if hold not in self._ended)
            if self._attempt("drop_holds", self._delete_ended):
                self._worked("drop_holds")

    def take_rearms(self) -> tuple[int, ...]:
        """VMIDs that an operator asked to be re-armed. What cannot be deleted is not returned: it would be re-armed for ever."""
        found: set[int] = set()

        def take(connection: sqlite3.Connection) -> None:
            if connection.execute("SELECT 1 FROM rearm LIMIT 1").fetchone():
                with _transaction(connection):
                    rows = connection.execute("DELETE FROM rearm RETURNING vmid").fetchall()
                found.update(int(row[0]) for row in rows)

        with self._lock:
            if self._attempt("take_rearms", take):
                self._worked("take_rearms")
        return tuple(sorted(found))

    def publish(self, board: Board) -> None:
        """Keep the last look. It may be lost with the power: the next one replaces it within a minute."""

        def write(connection: sqlite3.Connection) -> None:
            text = _written("the board", board)
            connection.execute("PRAGMA synchronous=NORMAL")
            with _transaction(connection):
                connection.execute("INSERT OR REPLACE INTO board VALUES (1, ?)", (text,))
            connection.execute("PRAGMA synchronous=FULL")

        with self._lock:
            if self._attempt("publish", write):
                self._worked("publish")

    def close(self) -> None:
        """Let go of the file. The next call opens it again."""
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                with suppress(sqlite3.Error):
                    connection.close()

    # Opening

    def _begin(self) -> None:
        try:
            self._memory = self._recovered(self._memory_of_file)
            self._rewrite = False
            self._saved_node = self._memory.node
        except StoreUnavailable as error:
            self.close()
            rest = _rest(self._file)
            if not self._memory.unknown:  # it was set aside, and its holds are in memory only
                rest.holds, rest.unknown, rest.file_id = self._memory.holds, "", ""
            self._memory, self._file_id = rest, rest.file_id
            self._fail("open", error, _meaning(rest, attempts_known=rest.node is not None))

    def _memory_of_file(self) -> _Memory:
        with _translated(self._file):
            return _load(self._current(), self._file)

    def _current(self) -> sqlite3.Connection:
        """The connection to the file that is there now, which need not be the one that was there at the last call."""
        if self._connection is not None and self._identity == _identity(self._file):
            _check_version(self._connection)
            return self._connection
        self.close()
        connection = _open(self._file, create=True)
        try:
            _check_pages(connection)
            file_id = _id_of(connection)
            if file_id != self._file_id and self._memory.holds:  # another file: the holds of the lost one go on
                with _transaction(connection):
                    _write_holds(connection, self._memory.holds, _KEEP_HOLD)
        except BaseException:
            connection.close()
            raise
        self._connection, self._identity, self._file_id, self._rewrite = connection, _identity(self._file), file_id, True
        return connection

    def _recovered(self, work: Callable[[], T]) -> T:
        """Do it; after setting a damaged file aside, once more on a new one that has what is in memory."""
        try:
            return work()
        except _Damaged as damage:
            self.close()
            found = _written_holds(self._file)
            kept = _set_aside(self._file)
            lost = bool(self._memory.unknown and found.missing)
            told = StoreUnavailable(f"{damage.message}; it was set aside as {kept}", "look at the disk")
            self._fail("open", told, _meaning_of_loss(found, known=self._memory.node is not None, lost=lost), again=lost)
            known = {hold.vmid for hold in self._memory.holds}
            fresh = tuple(hold for hold in found.holds if hold.vmid not in known and hold not in self._ended)
            self._memory.holds, self._memory.unknown = self._memory.holds + fresh, ""
            return work()

    # Doing

    def _attempt(self, what: str, work: Callable[[sqlite3.Connection], None]) -> bool:
        def once() -> None:
            with _translated(self._file):
                work(self._current())

        try:
            self._recovered(once)
        except StoreUnavailable as error:
            self.close()
            self._fail(what, error, _meaning(self._memory, attempts_known=True))
            return False
        return True

    def _write_memory(self, connection: sqlite3.Connection) -> None:
        node = self._memory.node
        if not (self._rewrite or self._unsaved or self._forgotten or node != self._saved_node):
            return
        changed = self._memory.guests.keys() if self._rewrite else self._unsaved
        rows, defects = _guest_rows(self._memory.guests[guest] for guest in changed)
        with _transaction(connection):
            if self._rewrite:
                connection.execute("DELETE FROM guest")
            connection.execute("INSERT OR REPLACE INTO node VALUES (1, ?)", (_written("the node", node),))
            connection.executemany("DELETE FROM guest WHERE id = ?", [(str(guest),) for guest in self._forgotten])
            connection.executemany("INSERT OR REPLACE INTO guest VALUES (?, ?)", rows)
        self._rewrite, self._saved_node = False, node
        self._unsaved = set(defects)
        self._forgotten.clear()
        if defects:
            raise defects.popitem()[1]

    def _read_holds(self, connection: sqlite3.Connection) -> None:
        found = _holds(connection)
        self._ended.intersection_update(found)
        self._memory.holds, self._memory.unknown = tuple(hold for hold in found if hold not in self._ended), ""

    def _delete_ended(self, connection: sqlite3.Connection) -> None:
        if self._ended:
            with _transaction(connection):
                gone = [hold for hold in _holds(connection) if hold in self._ended]
                connection.executemany("DELETE FROM hold WHERE vmid = ?", [(_number(hold.vmid),) for hold in gone])
            self._ended.clear()

    # Telling

    def _fail(self, what: str, error: StoreUnavailable, meaning: str, *, again: bool = False) -> None:
        """Tell it, when all was well until now or when it is another matter that must be told."""
        first = not self._failing
        self._failing.add(what)
        if first or again:
            message = "; ".join(part for part in (f"state: {error.message}", meaning, error.advice) if part)
            self._journal.emit(Event.STORE_FAILED, message=bounded(message, 600), reason=bounded(error.message))

    def _worked(self, *what: str) -> None:
        if self._failing:
            self._failing.difference_update(what)
            if not self._failing:
                self._journal.emit(Event.STORE_RESTORED, message=f"state: all that is in memory is in {self._file} again")


def _meaning(memory: _Memory, *, attempts_known: bool) -> str:
    """What it means that the file can be used no more, or not yet; only what is so in this case."""
    if attempts_known and not memory.unknown:
        return f"guests are guarded as before, but attempts would be {_NOT_DURABLE}"
    attempts = "attempts are in memory" if attempts_known else "attempts made before are not known"
    if memory.unknown:
        holds = f"holds are not known and no guest is started until they are ({bounded(memory.unknown, 120)})"
    else:
        holds = f"holds that were read go on: {len(memory.holds)}" if memory.holds else "no holds are written there"
    return f"{attempts}; {holds}; new attempts would be {_NOT_DURABLE}"


def _meaning_of_loss(found: _Found, *, known: bool, lost: bool) -> str:
    """What it means that the file was set aside. known: the memory of guests is not only in there. lost: holds were."""
    attempts = "what is in memory is written to a new one" if known else "attempts made before are forgotten"
    if lost:
        return f"{attempts}; {'some' if found.holds else 'its'} holds are gone: set them again"
    return f"{attempts}; its holds go on" if found.holds else attempts


# The CLI's side. All raise StoreUnavailable and nothing else.


def read_board(folder: Path) -> Board | None:
    """The agent's last look, or None when it has not looked yet."""
    with _existing(folder) as connection:
        row = connection.execute("SELECT CAST(board AS BLOB) FROM board").fetchone() if connection else None
        if row is None:
            return None
        try:
            return codec.loads(Board, row[0])
        except ValueError as error:
            raise StoreUnavailable(
                f"the last look was written by another version of Guestward ({error})", "wait for the agent's next sweep"
            ) from None


def add_hold(folder: Path, hold: Hold) -> None:
    """Write a hold down; it replaces one for the same guest or for the node."""
    with _ready(folder) as connection, _transaction(connection):
        _write_holds(connection, (hold,), _PUT_HOLD)


def remove_hold(folder: Path, vmid: int | None) -> Hold | None:
    """Delete the hold of a guest, or with None the node's, and return it; None when there was none."""
    with _existing(folder) as connection:
        if connection is None:
            return None
        with _transaction(connection):
            found = next((hold for hold in _holds(connection) if hold.vmid == vmid), None)
            connection.execute("DELETE FROM hold WHERE vmid = ?", (_number(vmid),))
        return found


def list_holds(folder: Path) -> tuple[Hold, ...]:
    """All holds written down, the node's first; ended ones included until the agent has deleted them."""
    with _existing(folder) as connection:
        return _holds(connection) if connection else ()


def request_rearm(folder: Path, vmid: int) -> None:
    """Ask the agent to give a guest all its attempts again."""
    with _ready(folder) as connection, _transaction(connection):
        connection.execute("INSERT OR REPLACE INTO rearm VALUES (?)", (vmid,))


@contextmanager
def _ready(folder: Path) -> Iterator[sqlite3.Connection]:
    with _told_to_people(folder), closing(_open(folder / FILE, create=True)) as connection:
        yield connection


@contextmanager
def _existing(folder: Path) -> Iterator[sqlite3.Connection | None]:
    with _told_to_people(folder):
        if not _there(folder / FILE):
            yield None
            return
        with closing(_open(folder / FILE, create=False)) as connection:
            yield connection


@contextmanager
def _told_to_people(folder: Path) -> Iterator[None]:
    try:
        with _translated(folder / FILE):
            yield
    except _Damaged as error:
        raise StoreUnavailable(error.message, "the agent sets it aside when it meets it: `systemctl restart guestward`") from None


def inspect(folder: Path) -> str | None:
    """What is wrong with the state and what the agent will do about it; None when nothing is, or when there is no file yet.

    Nothing is changed: neither the file nor its version. Never raises.
    """
    file = folder / FILE
    return _fault(file) and _fault(file)  # once more: the agent may have opened it in between, which is seen by its -wal


def _fault(file: Path) -> str | None:
    mode = _IN_PLACE if _in_use(file) else _AS_IT_LIES
    try:
        with _translated(file):
            if not _there(file):
                return None
            _look_at(file)
            with closing(_connect(file, mode)) as connection, _migrated(connection) as current:
                _check_pages(connection)
                _id_of(current)
                _load(current, file)
        return None
    except _Damaged as error:
        found = _written_holds(file)
        meaning = _meaning_of_loss(found, known=False, lost=bool(found.missing))
        return f"{error.message}; the agent sets it aside when it starts: {meaning}"
    except StoreUnavailable as error:
        rest = _rest(file)
        return f"{error.message}; the agent leaves it and goes on in memory: {_meaning(rest, attempts_known=rest.node is not None)}"


@contextmanager
def _migrated(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """The same, or of an older version a copy in memory that is brought up as the agent will do with the file."""
    if _check_version(connection) == VERSION:
        yield connection
        return
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as copy:
        connection.backup(copy)
        _migrate(copy)
        yield copy


# Rows


def _load(connection: sqlite3.Connection, file: Path) -> _Memory:
    try:
        node = connection.execute("SELECT CAST(memory AS BLOB) FROM node").fetchone()
        rows = connection.execute("SELECT CAST(memory AS BLOB) FROM guest").fetchall()
        guests = [codec.loads(GuestMemory, row[0]) for row in rows]
        return _Memory(codec.loads(NodeMemory, node[0]) if node else None, {memory.id: memory for memory in guests}, _decoded(connection))
    except ValueError as error:
        raise _Damaged(f"{file} does not hold what it should ({bounded(error.args[0], 120)})") from None


def _decoded(connection: sqlite3.Connection) -> tuple[Hold, ...]:
    rows = connection.execute("SELECT CAST(hold AS BLOB) FROM hold ORDER BY vmid").fetchall()
    return tuple(codec.loads(Hold, row[0]) for row in rows)


def _holds(connection: sqlite3.Connection) -> tuple[Hold, ...]:
    try:
        return _decoded(connection)
    except ValueError as error:
        raise StoreUnavailable(f"a hold in {_name(connection)} cannot be read ({bounded(error.args[0], 120)})") from None


def _written_holds(file: Path) -> _Found:
    """The holds of a file of whatever version, damaged or not, left as it is: a lost hold would start a guest against somebody's wish."""
    try:
        mode = file.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return _Found()
    except OSError as error:
        return _Found(missing=f"{file}: {error.strerror}")
    if stat.S_ISREG(mode):
        return _holds_of_file(file)
    return _Found(missing=f"{file} is a link, which is not followed" if stat.S_ISLNK(mode) else "")


def _holds_of_file(file: Path) -> _Found:
    late = [name for suffix in ("-wal", "-journal") if _size(name := _beside(file, suffix))]
    if not late:
        found = _holds_seen(file, _AS_IT_LIES)
        if not found.missing or not _in_use(file):
            return found
    found, other = _holds_seen(file, _IN_PLACE), _holds_seen(file, _AS_IT_LIES)
    if found.missing and late and not other.missing:
        return replace(other, missing=f"what was written last is in {late[0]}, which cannot be read ({found.missing})")
    return max(found, other, key=_worth)


def _worth(found: _Found) -> tuple[bool, int]:
    return not found.missing, len(found.holds)


def _holds_seen(file: Path, mode: str) -> _Found:
    """One way to read them. What can be read counts, even where an error ends it."""
    found, missing, file_id = [], "", ""
    try:
        with closing(_connect(file, mode)) as connection:
            if _is_blank(connection):
                return _Found()
            for row in connection.execute("SELECT CAST(hold AS BLOB) FROM hold"):
                try:
                    found.append(_tolerant(row[0]))
                except ValueError as error:
                    missing = f"a hold in {file} cannot be read ({bounded(str(error), 120)})"
            with suppress(StoreUnavailable, sqlite3.Error):
                file_id = _id_of(connection)
    except sqlite3.Error as error:
        missing = f"{file}: {error}"
    return _Found(tuple(found), bounded(missing), file_id)


def _is_blank(connection: sqlite3.Connection) -> bool:
    """A database that was given a version and nothing else; one without either may be what a power cut left."""
    version, tables = connection.execute("SELECT user_version, (SELECT count(*) FROM sqlite_master) FROM pragma_user_version").fetchone()
    return bool(version > 0 and tables == 0)


def _tolerant(text: bytes | str) -> Hold:
    """A hold; what a newer version has added to it is left out. Raises ValueError."""
    try:
        return codec.loads(Hold, text)
    except ValueError as error:
        with suppress(ValueError, TypeError, RecursionError):
            data = json.loads(text)
            if isinstance(data, dict):
                names = [entry.name for entry in fields(Hold)]
                return codec.loads(Hold, json.dumps({name: data[name] for name in names if name in data}))
        raise error


def _write_holds(connection: sqlite3.Connection, holds: Iterable[Hold], statement: str) -> None:
    connection.executemany(statement, [(_number(hold.vmid), _written("the hold", hold)) for hold in holds])


def _guest_rows(memories: Iterable[GuestMemory]) -> tuple[list[tuple[str, str]], dict[GuestId, StoreUnavailable]]:
    """Rows, and the guests whose memory cannot be written down: a defect in one must not cost the others theirs."""
    rows, defects = [], {}
    for memory in memories:
        try:
            rows.append((str(memory.id), _written(str(memory.id), memory)))
        except StoreUnavailable as defect:
            defects[memory.id] = defect
    return rows, defects


def _written(what: str, value: object) -> str:
    try:
        return codec.dumps(value)
    except ValueError as error:
        raise StoreUnavailable(f"what is known of {what} cannot be written down ({error})", "this is a defect in Guestward") from None


def _number(vmid: int | None) -> int:
    return _WHOLE_NODE if vmid is None else vmid


# The file


def _open(file: Path, *, create: bool) -> sqlite3.Connection:
    if create and not _there(file):
        _create(file)
    _look_at(file)
    connection = _connect(file)
    try:
        _migrate(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _look_at(file: Path) -> None:
    """See that SQLite would not take it for something else."""
    status = file.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise StoreUnavailable(f"{file} is not a file", "move it away")
    if status.st_size < _LEAST_BYTES:  # SQLite would take it for a new one
        raise _Damaged(f"{file} is empty" if status.st_size == 0 else f"{file} is cut off after {status.st_size} bytes")


def _connect(file: Path, mode: str = "mode=rw") -> sqlite3.Connection:
    uri = f"{file.absolute().as_uri()}?{mode}"
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA journal_size_limit=4194304")
    except BaseException:
        connection.close()
        raise
    return connection


def _create(file: Path) -> None:
    """Make the file under another name first: a half-made one never bears the real name."""
    with suppress(FileExistsError):
        file.parent.mkdir(mode=0o750)
    with _folder_lock(file.parent):
        if _there(file):
            return
        draft = _draft(file)
        try:
            with closing(_connect(draft)) as connection:
                connection.execute("PRAGMA journal_mode=WAL")
                _migrate(connection)
            for suffix in ("-wal", "-shm"):  # of a file that was deleted while it was open: they would be played into the new one
                _beside(file, suffix).unlink(missing_ok=True)
            draft.rename(file)
        finally:
            draft.unlink(missing_ok=True)


def _draft(file: Path) -> Path:
    descriptor, name = tempfile.mkstemp(prefix=f"{file.name}.new-", dir=file.parent)
    try:
        os.fchmod(descriptor, 0o640)
        if os.geteuid() == 0:  # the CLI as root: the service must be able to open it
            owner = file.parent.stat()
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
    finally:
        os.close(descriptor)
    return Path(name)


def _migrate(connection: sqlite3.Connection) -> None:
    if _check_version(connection) < VERSION:
        with _transaction(connection):
            for steps in _MIGRATIONS[_check_version(connection) :]:
                for step in steps:
                    connection.execute(step)
            connection.execute(f"PRAGMA user_version={VERSION}")


def _check_version(connection: sqlite3.Connection) -> int:
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > VERSION:
        raise StoreUnavailable(
            f"{_name(connection)} was written by a newer Guestward (its version {version}, known {VERSION})",
            "it is left as it is; upgrade Guestward, or move the file away",
        )
    return max(version, 0)


def _id_of(connection: sqlite3.Connection) -> str:
    row = connection.execute("SELECT value FROM meta WHERE name = 'id'").fetchone()
    if row is None:
        raise _Damaged(f"{_name(connection)} has no id")
    return str(row[0])


def _check_pages(connection: sqlite3.Connection) -> None:
    found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise _Damaged(f"{_name(connection)} is damaged ({bounded(found, 120)})")


def _rest(file: Path) -> _Memory:
    """What can be known of a file that SQLite cannot use where it is, as on a read-only file system, or that is not ours to use."""
    memory, found = _Memory(), _written_holds(file)
    with suppress(StoreUnavailable, OSError, sqlite3.Error), _copy_of(file) as copy:
        if found.missing:
            found = max(found, _written_holds(copy), key=_worth)
        with closing(_open(copy, create=False)) as connection:
            _check_pages(connection)
            memory = _load(connection, file)
            found = _Found(memory.holds) if found.missing else found
    memory.holds, memory.unknown, memory.file_id = found.holds, found.missing, found.file_id
    return memory


@contextmanager
def _copy_of(file: Path) -> Iterator[Path]:
    """A copy in a folder that can be written. Raises OSError when there is none, or nothing to copy."""
    if not stat.S_ISREG(file.stat().st_mode):
        raise FileNotFoundError("no file to copy")
    with _spare_folder() as folder:
        copy = folder / FILE
        for suffix in ("", "-wal"):
            if not suffix or _there(_beside(file, suffix)):
                shutil.copyfile(_beside(file, suffix), _beside(copy, suffix))
        yield copy


@contextmanager
def _spare_folder() -> Iterator[Path]:
    for place in _COPIES:
        try:
            folder = tempfile.TemporaryDirectory(prefix="guestward-", dir=place)
        except OSError:
            continue
        with folder as name:
            yield Path(name)
            return
    raise FileNotFoundError("no folder for a copy")


def _set_aside(file: Path) -> str:
    """Give a damaged file another name, and return that. Raises StoreUnavailable."""
    pattern = re.compile(re.escape(f"{file.name}.corrupt-") + r"(\d{1,9})")
    with _translated(file), _folder_lock(file.parent):
        numbers = sorted(int(match[1]) for name in os.listdir(file.parent) if (match := pattern.fullmatch(name)))
        kept = _beside(file, f".corrupt-{numbers[-1] + 1 if numbers else 1}")
        file.rename(kept)
        if _there(_beside(file, "-wal")):
            _beside(file, "-wal").rename(_beside(kept, "-wal"))
        _beside(file, "-shm").unlink(missing_ok=True)
        for number in numbers[: -(KEPT_CORRUPT - 1)]:
            for suffix in ("", "-wal"):
                _beside(file, f".corrupt-{number}{suffix}").unlink(missing_ok=True)
    return kept.name


def _beside(file: Path, suffix: str) -> Path:
    return file.with_name(file.name + suffix)


def _in_use(file: Path) -> bool:
    return os.path.lexists(_beside(file, "-wal"))


def _size(file: Path) -> int:
    try:
        return file.lstat().st_size
    except OSError:
        return 0


def _there(file: Path) -> bool:
    """Whether there is anything of that name. Raises OSError when nobody can say."""
    try:
        file.lstat()
    except FileNotFoundError:
        return False
    return True


def _identity(file: Path) -> tuple[int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _name(connection: sqlite3.Connection) -> str:
    return str(connection.execute("PRAGMA database_list").fetchone()[2])


@contextmanager
def _folder_lock(folder: Path) -> Iterator[None]:
    """One process at a time makes the file or sets it aside."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        end = time.monotonic() + BUSY_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise StoreUnavailable(f"another process is making the state in {folder}", "try again") from None
                time.sleep(0.02)
        yield
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


@contextmanager
def _translated(file: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_MISUSE) & 0xFF
        text = f"{file}: {error}"
        raise (_Damaged(text) if code in _DAMAGE else StoreUnavailable(text, _ADVICE.get(code, ""))) from None
    except OSError as error:
        raise StoreUnavailable(f"{error.filename or file}: {error.strerror or error}", _OWNER) from None
