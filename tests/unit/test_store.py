"""The store: durable where the disk is well, harmless where it is not."""

from __future__ import annotations

import fcntl
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from guestward.adapters import codec
from guestward.adapters import store as store_module
from guestward.adapters.store import (
    FILE,
    SqliteStore,
    StoreUnavailable,
    add_hold,
    inspect,
    list_holds,
    read_board,
    remove_hold,
    request_rearm,
)
from guestward.model.decision import Decision, Gate, Guard, Outcome, Verdict
from guestward.model.events import EventKind, Level
from guestward.model.guest import GuestId, GuestKind
from guestward.model.memory import Attempt, GuestMemory, Hold, NodeMemory
from guestward.model.reading import Unreadable
from guestward.ports import Board, GuestLabel, Row


class Ears:
    """A journal that only remembers."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []

    def emit(
        self, event: EventKind, level: Level | None = None, *, message: str, guest: GuestLabel | None = None, **fields: object
    ) -> None:
        assert set(fields) <= set(event.fields)
        assert len(message) <= 600
        self.heard.append((event.name, message))

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.heard]


class Open:
    """Stores of one test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ears = Ears()
        self.stores: list[SqliteStore] = []

    def __call__(self, folder: Path | None = None) -> SqliteStore:
        store = SqliteStore(folder or self.folder, self.ears)
        self.stores.append(store)
        return store


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    opener = Open(tmp_path)
    yield opener
    for store in opener.stores:
        store.close()


LXC = GuestId(GuestKind.LXC, 101)
VM = GuestId(GuestKind.QEMU, 102)
NODE = NodeMemory("boot", True, looked_at=6.5, sweeps=7, mass_stop_until=12.5)
DOWN = GuestMemory(LXC, "web", True, attempts=(Attempt(1, 1.0, 2.0, ended_at=3.0, outcome=Outcome.FAILED, reason="no"),), given_up=True)
UP = GuestMemory(VM, "db", running=True, blocked_storages=frozenset({"nas"}))
HOLD = Hold(101, "disk swap", "root", 7200.0, "boot", 5.0, 1000.0)
NODE_HOLD = replace(HOLD, vmid=None, reason="ups")


def board(guests: int = 1) -> Board:
    rows = []
    for number in range(guests):
        guest = GuestId(GuestKind.LXC, 100 + number)
        verdicts = tuple(Verdict(guard, guard is Guard.RUNNING, f"what {guard} saw") for guard in list(Guard)[:4])
        rows.append(Row(Decision(guest, f"guest-{number}", Guard.RUNNING, "it runs", verdicts), True, True, 0, None, False, "", None))
    return Board("pve1", "boot", 1.0, 2.0, 1.0, 2.0, 3, Gate(), tuple(rows))


# A healthy disk


def test_remembers_over_a_restart(opened: Open) -> None:
    store = opened()
    assert store.begins_empty()
    assert (store.node(), store.guests(), store.holds(), store.take_rearms()) == (NodeMemory(), {}, (), ())
    store.save(NODE, [DOWN, UP], [])
    store.save(NODE, [], [VM])
    store.close()
    again = opened()
    assert not again.begins_empty()
    assert again.node() == NODE
    assert again.guests() == {LXC: DOWN}
    assert opened.ears.heard == []
    assert (opened.folder / FILE).stat().st_mode & 0o777 == 0o640
    assert [name.name for name in opened.folder.iterdir() if ".new-" in name.name] == []


def test_the_copy_that_is_given_out_is_the_callers_own(opened: Open) -> None:
    store = opened()
    store.save(NODE, [DOWN], [])
    store.guests().clear()
    assert store.guests() == {LXC: DOWN}


def test_makes_its_folder_but_not_the_one_above(opened: Open, tmp_path: Path) -> None:
    opened(tmp_path / "state").save(NODE, [], [])
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o750
    assert opened.ears.heard == []
    opened(tmp_path / "not" / "there").save(NODE, [], [])
    assert opened.ears.names == ["store_failed"]


def test_nothing_changed_is_not_written(opened: Open) -> None:
    store = opened()
    store.save(NODE, [DOWN], [])
    with closing(sqlite3.connect(opened.folder / FILE)) as other:
        before = other.execute("PRAGMA data_version").fetchone()
        store.save(NODE, [], [])
        assert other.execute("PRAGMA data_version").fetchone() == before
        store.save(replace(NODE, sweeps=8), [], [])
        assert other.execute("PRAGMA data_version").fetchone() != before


def test_holds_of_the_cli_are_seen_and_dropped(opened: Open) -> None:
    store = opened()
    add_hold(opened.folder, HOLD)
    add_hold(opened.folder, NODE_HOLD)
    assert store.holds() == list_holds(opened.folder) == (NODE_HOLD, HOLD)
    longer = replace(HOLD, duration=9999.0)
    add_hold(opened.folder, longer)
    store.drop_holds([HOLD])  # was replaced meanwhile: the newer one stays
    assert list_holds(opened.folder) == (NODE_HOLD, longer)
    store.drop_holds([longer])
    assert store.holds() == list_holds(opened.folder) == (NODE_HOLD,)
    assert remove_hold(opened.folder, None) == NODE_HOLD
    assert remove_hold(opened.folder, None) is None
    assert store.holds() == ()


def test_rearms_are_taken_once(opened: Open) -> None:
    store = opened()
    for vmid in (102, 101, 102):
        request_rearm(opened.folder, vmid)
    assert store.take_rearms() == (101, 102)
    assert store.take_rearms() == ()


def test_the_cli_before_the_first_run(opened: Open, tmp_path: Path) -> None:
    folder = tmp_path / "state"
    assert read_board(folder) is None
    assert list_holds(folder) == ()
    assert remove_hold(folder, 101) is None
    assert not folder.exists()
    add_hold(folder, HOLD)
    request_rearm(folder, 101)
    assert read_board(folder) is None
    store = opened(folder)
    assert store.begins_empty()  # holds are no memory of guests
    assert store.holds() == (HOLD,)
    assert store.take_rearms() == (101,)
    assert opened.ears.heard == []


def test_a_board_of_1000_guests(opened: Open) -> None:
    store = opened()
    large = board(1000)
    store.publish(large)
    assert read_board(opened.folder) == large
    store.publish(board())
    assert read_board(opened.folder) == board()


def test_a_board_of_another_version(opened: Open) -> None:
    store = opened()
    store.save(NODE, [], [])
    store.publish(board())
    with closing(sqlite3.connect(opened.folder / FILE, isolation_level=None)) as other:
        other.execute("UPDATE board SET board = '{}'")
    with pytest.raises(StoreUnavailable, match="another version"):
        read_board(opened.folder)
    store.close()
    assert not opened().begins_empty()  # it is no reason to forget anything
    assert opened.ears.heard == []


def test_several_threads(opened: Open) -> None:
    store = opened()

    def work(number: int) -> None:
        for round_ in range(10):
            store.save(replace(NODE, sweeps=round_), [replace(UP, id=GuestId(GuestKind.LXC, 200 + number))], [])
            store.holds()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.close()
    assert len(opened().guests()) == 4
    assert opened.ears.heard == []


def test_works_on_after_close(opened: Open) -> None:
    store = opened()
    store.close()
    store.save(NODE, [DOWN], [])
    store.close()
    store.close()
    assert opened().guests() == {LXC: DOWN}
    assert opened.ears.heard == []


# Files that are no state


@pytest.fixture
def before(opened: Open) -> Path:
    """A file with a memory in it."""
    store = opened()
    store.save(NODE, [DOWN, UP], [])
    store.close()
    add_hold(opened.folder, HOLD)
    return opened.folder / FILE


def run_sql(*statements: str) -> Callable[[Path], None]:
    def spoil(file: Path) -> None:
        with closing(sqlite3.connect(file, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode=DELETE")
            for statement in statements:
                connection.execute(statement)

    return spoil


def write(data: bytes) -> Callable[[Path], None]:
    return lambda file: file.write_bytes(data) and None


def truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 4096 - 17)


def scribble(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[4096:] = os.urandom(len(data) - 4096)
    file.write_bytes(data)


DAMAGE: dict[str, Callable[[Path], None]] = {
    "empty": lambda file: os.truncate(file, 0),
    "nuls": write(bytes(4096)),
    "json": write(b'{"version": 99}'),
    "garbage": write(os.urandom(5000)),
    "truncated": truncate,
    "scribbled": scribble,
    "header only": lambda file: os.truncate(file, 100),
    "no table": run_sql("DROP TABLE guest"),
    "other columns": run_sql("DROP TABLE guest", "CREATE TABLE guest (x)"),
    "no meta": run_sql("DROP TABLE meta"),
    "no id": run_sql("DELETE FROM meta"),
    "null": run_sql("DROP TABLE guest", "CREATE TABLE guest (id, memory)", "INSERT INTO guest VALUES (1, NULL)"),
    "no json": run_sql("UPDATE guest SET memory = '{\"id\":'"),
    "unknown field": run_sql("UPDATE node SET memory = '{\"later\":1}'"),
    "wrong type": run_sql("UPDATE guest SET memory = x'ff00'"),
    "a number": run_sql("UPDATE guest SET memory = 5"),
    "hold": run_sql("UPDATE hold SET hold = '[]'"),
}


HOLDS_LOST = {"empty", "nuls", "json", "garbage", "truncated", "scribbled", "header only", "hold"}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_when_opened(name: str, opened: Open, before: Path) -> None:
    DAMAGE[name](before)
    spoiled = before.read_bytes()
    store = opened()
    assert store.begins_empty()
    assert store.guests() == {}
    assert opened.ears.names == ["store_failed"]
    assert "set aside as guestward.db.corrupt-1" in opened.ears.heard[0][1]
    lost = name in HOLDS_LOST
    assert ("holds are gone: set them again" in opened.ears.heard[0][1]) is lost
    assert ("its holds go on" in opened.ears.heard[0][1]) is not lost
    assert store.holds() == (() if lost else (HOLD,))
    assert before.with_name("guestward.db.corrupt-1").read_bytes()[:90] == spoiled[:90]
    store.save(NODE, [UP], [])
    assert opened.ears.names == ["store_failed", "store_restored"]
    store.close()
    again = opened()
    assert again.guests() == {VM: UP}
    assert len(opened.ears.heard) == 2


READ_ONCE = {"no json", "null", "unknown field", "wrong type", "a number", "hold"}  # what the rows say is not read again


@pytest.mark.parametrize("name", sorted(DAMAGE.keys() - READ_ONCE))
def test_damaged_while_it_runs(name: str, opened: Open, before: Path) -> None:
    store = opened()
    assert store.holds() == (HOLD,)
    store.close()  # as when the disk answered with an error
    DAMAGE[name](before)
    store.save(NODE, [], [])
    assert store.holds() == (HOLD,)
    assert opened.ears.names == ["store_failed", "store_restored"]
    store.close()
    again = opened()
    assert again.guests() == {LXC: DOWN, VM: UP}
    assert again.holds() == (HOLD,)


def test_holds_survive_a_memory_that_cannot_be_read(opened: Open, before: Path) -> None:
    run_sql("UPDATE guest SET memory = 'x'", "INSERT INTO hold VALUES (103, 'x')")(before)
    store = opened()
    assert store.begins_empty()
    assert store.holds() == (HOLD,)
    assert list_holds(opened.folder) == (HOLD,)
    assert "some holds are gone: set them again" in opened.ears.heard[0][1]


def test_salvaged_holds_outlive_a_new_file_that_cannot_be_made(opened: Open, before: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_sql("UPDATE guest SET memory = 'x'")(before)

    def full(_: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr(store_module, "_create", full)
        store = opened()
        assert store.holds() == (HOLD,)
    assert store.holds() == (HOLD,)
    assert list_holds(opened.folder) == (HOLD,)


def test_a_hold_that_is_new_in_a_file_that_is_damaged_while_it_runs(opened: Open, before: Path) -> None:
    store = opened()
    assert store.holds() == (HOLD,)
    add_hold(opened.folder, NODE_HOLD)
    store.close()
    run_sql("DROP TABLE guest", "DROP TABLE meta")(before)
    store.save(NODE, [], [])
    assert store.holds() == (NODE_HOLD, HOLD)


def test_a_hold_that_cannot_be_read_while_it_runs(opened: Open, before: Path) -> None:
    store = opened()
    assert store.holds() == (HOLD,)
    with closing(sqlite3.connect(before, isolation_level=None)) as other:
        other.execute("INSERT INTO hold VALUES (103, 'x')")
        assert store.holds() == (HOLD,)
        assert store.holds() == (HOLD,)
        store.save(replace(NODE, sweeps=9), [], [])
        assert opened.ears.names == ["store_failed"]
        with pytest.raises(StoreUnavailable, match=r"a hold in .* cannot be read"):
            list_holds(opened.folder)
        other.execute("DELETE FROM hold WHERE vmid = 103")
    assert store.holds() == (HOLD,)
    assert opened.ears.names == ["store_failed", "store_restored"]


def test_three_damaged_files_are_kept(opened: Open) -> None:
    for number in range(5):
        (opened.folder / FILE).write_bytes(b"%d" % number)
        opened().close()
    (opened.folder / "guestward.db.corrupt-x").write_text("somebody's own")
    kept = sorted(opened.folder.glob("*.corrupt-[0-9]"))
    assert [file.read_bytes() for file in kept] == [b"2", b"3", b"4"]
    assert opened.ears.names == ["store_failed"] * 5


def test_a_wal_goes_with_its_damaged_file(before: Path) -> None:
    before.with_name(FILE + "-wal").write_bytes(b"w" * 100)
    before.with_name(FILE + "-shm").write_bytes(b"s" * 100)
    assert store_module._set_aside(before) == "guestward.db.corrupt-1"
    assert sorted(file.name for file in before.parent.iterdir()) == ["guestward.db.corrupt-1", "guestward.db.corrupt-1-wal"]
    assert before.with_name("guestward.db.corrupt-1-wal").read_bytes() == b"w" * 100


def test_the_cli_leaves_a_damaged_file_alone(opened: Open, before: Path) -> None:
    before.write_bytes(b"x" * 5000)
    for call in (read_board, list_holds, lambda folder: add_hold(folder, HOLD)):
        with pytest.raises(StoreUnavailable, match="not a database") as caught:
            call(opened.folder)
        assert "the agent sets it aside" in caught.value.advice
    assert before.read_bytes() == b"x" * 5000


def test_newer_is_left_untouched(opened: Open, before: Path) -> None:
    run_sql("PRAGMA user_version=99", "ALTER TABLE guest RENAME TO guests")(before)
    data = before.read_bytes()
    store = opened()
    assert store.begins_empty()
    store.save(NODE, [UP], [])
    assert store.guests() == {VM: UP}
    store.publish(board())
    assert (store.holds(), store.take_rearms()) == ((HOLD,), ())
    assert opened.ears.names == ["store_failed"]
    assert "newer Guestward" in opened.ears.heard[0][1]
    assert "attempts made before are not known; holds that were read go on: 1" in opened.ears.heard[0][1]
    with pytest.raises(StoreUnavailable, match="newer"):
        add_hold(opened.folder, HOLD)
    store.close()
    assert before.read_bytes() == data
    assert list(opened.folder.glob("*.corrupt*")) == []


def test_holds_of_a_newer_version_with_more_in_them(opened: Open, before: Path) -> None:
    run_sql("PRAGMA user_version=99", "UPDATE hold SET hold = json_set(hold, '$.colour', 'red')")(before)
    assert opened().holds() == (HOLD,)
    assert opened.ears.names == ["store_failed"]


def test_holds_of_a_newer_version_after_a_crash(opened: Open, before: Path) -> None:
    """The last of them is only in the WAL."""
    with closing(sqlite3.connect(before, isolation_level=None)) as other:
        other.execute("PRAGMA user_version=99")
        other.execute("INSERT INTO hold VALUES (0, ?)", (codec.dumps(NODE_HOLD),))
        files = {name: (opened.folder / name).read_bytes() for name in (FILE, FILE + "-wal")}
    for name, data in files.items():
        (opened.folder / name).write_bytes(data)
    assert set(store_module._holds_seen(before, store_module._AS_IT_LIES).holds) == {HOLD}
    assert inspect(opened.folder) is not None
    assert files == {name: (opened.folder / name).read_bytes() for name in files}
    assert set(known(opened())) == {HOLD, NODE_HOLD}


UNREAD = {
    "no table": run_sql("PRAGMA user_version=99", "ALTER TABLE hold RENAME TO holds"),
    "a row": run_sql("PRAGMA user_version=99", "INSERT INTO hold VALUES (103, 'x')"),
    "no object": run_sql("PRAGMA user_version=99", "UPDATE hold SET hold = '[1]'"),
    "nothing": run_sql("PRAGMA user_version=99", "DROP TABLE hold", "CREATE TABLE hold (hold)", "INSERT INTO hold VALUES (NULL)"),
    "a lost field": run_sql("PRAGMA user_version=99", "UPDATE hold SET hold = json_remove(hold, '$.wall')"),
}


@pytest.mark.parametrize("name", UNREAD)
def test_holds_of_a_newer_version_that_cannot_be_read(name: str, opened: Open, before: Path) -> None:
    UNREAD[name](before)
    store = opened()
    for _ in range(2):
        assert isinstance(store.holds(), Unreadable)
        store.save(NODE, [], [])
        store.drop_holds([])
    assert opened.ears.names == ["store_failed"]
    assert "holds are not known and no guest is started until they are" in opened.ears.heard[0][1]
    assert "guarded as before" not in opened.ears.heard[0][1]
    before.rename(before.with_name("away"))
    assert store.holds() == ((HOLD,) if name == "a row" else ())
    store.save(NODE, [], [])
    store.drop_holds([])
    assert opened.ears.names == ["store_failed", "store_restored"]


def test_holds_that_become_readable_are_known_from_then_on(opened: Open, before: Path) -> None:
    run_sql("PRAGMA user_version=99", "ALTER TABLE hold RENAME TO holds")(before)
    store = opened()
    assert isinstance(store.holds(), Unreadable)
    run_sql("ALTER TABLE holds RENAME TO hold")(before)
    assert store.holds() == (HOLD,)
    run_sql("ALTER TABLE hold RENAME TO holds")(before)
    assert store.holds() == (HOLD,)


def test_a_hold_that_was_released_meanwhile_does_not_come_back(opened: Open, before: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(*_: object, **__: object) -> sqlite3.Connection:
        raise StoreUnavailable("locked")

    with monkeypatch.context() as context:
        context.setattr(store_module, "_open", busy)
        store = opened()
        assert store.holds() == (HOLD,)
    assert remove_hold(opened.folder, 101) == HOLD
    assert store.holds() == ()


def test_a_newer_file_that_is_replaced_hands_its_holds_on(opened: Open, before: Path) -> None:
    run_sql("PRAGMA user_version=99")(before)
    store = opened()
    before.unlink()
    assert store.holds() == (HOLD,)
    assert list_holds(opened.folder) == (HOLD,)


def test_made_newer_while_it_runs(opened: Open, before: Path) -> None:
    store = opened()
    assert store.holds() == (HOLD,)
    with closing(sqlite3.connect(before, isolation_level=None)) as other:
        other.execute("ALTER TABLE hold RENAME TO holds")
        other.execute("PRAGMA user_version=2")
    assert store.holds() == (HOLD,)
    store.save(NODE, [UP], [])
    assert opened.ears.names == ["store_failed"]
    assert list(opened.folder.glob("*.corrupt*")) == []


def test_an_older_file_is_brought_up(opened: Open, before: Path) -> None:
    with closing(sqlite3.connect(before.with_name("other.db"))) as other:
        other.execute("PRAGMA user_version=-3")
        other.execute("CREATE TABLE x (y)")
    before.with_name("other.db").replace(before)
    store = opened()
    store.save(NODE, [UP], [])
    store.close()
    assert opened().guests() == {VM: UP}
    assert opened.ears.heard == []


def test_what_version_1_wrote_can_be_read() -> None:
    """When this fails, a migration is missing: files on real hosts hold this."""
    guest = (
        '{"id":"lxc/101","name":"web","owned":true,"identity":"i","fingerprint":"f","ran":true,"new":true,"away":true,"running":true,'
        '"down_since":1.0,"startable_since":2.0,"announced":["held"],"cause":{"task":"vzstop","user":"root@pam","at":1.0,"wall":2.0,'
        '"by_vzdump":true,"foreign":false},"cause_read":true,"attempts":[{"number":1,"begun_at":1.0,"deadline":2.0,"upid":"U",'
        '"ended_at":3.0,"outcome":"unknown","reason":"r","live_reads":1,"task_ended_at":4.0,"task_said":"s"}],"given_up":true,'
        '"stable_since":5.0,"blocked_storages":["nas"],"backup_since":6.0,"backup_warned":true,"not_working":"paused"}'
    )
    assert codec.loads(GuestMemory, guest).attempts[0].outcome is Outcome.UNKNOWN
    assert codec.loads(NodeMemory, '{"boot_id":"b","watched":true,"sweeps":3,"mass_stop_until":1.0}').sweeps == 3
    assert codec.loads(Hold, codec.dumps(HOLD)) == HOLD
    hold = '{"vmid":101,"reason":"disk swap","by":"root","duration":7200.0,"boot_id":"boot","boottime":5.0,"wall":1000.0}'
    assert codec.dumps(HOLD) == hold


# Disks that are not well


@contextmanager
def tmpfs(folder: Path, options: str) -> Iterator[Path]:
    folder.mkdir(exist_ok=True)
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", folder], check=False).returncode != 0:
        pytest.skip("cannot mount a tmpfs here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def known(store: SqliteStore) -> tuple[Hold, ...]:
    holds = store.holds()
    assert not isinstance(holds, Unreadable), holds
    return holds


AS_BEFORE = "guests are guarded as before, but attempts would be forgotten at a restart"
NOTHING_THERE = "attempts made before are not known; no holds are written there; new attempts would be forgotten at a restart"
UNKNOWN = "attempts made before are not known; holds are not known and no guest is started until they are"


def live_on(store: SqliteStore, ears: Ears, meaning: str) -> None:
    """Everything a sweep does, several times; the memory must be right and one ERROR told."""
    for sweep in range(3):
        store.save(replace(NODE, sweeps=sweep), [replace(DOWN, name=f"n{sweep}")], [])
        store.publish(board())
        store.drop_holds([])
        store.take_rearms()
        assert store.node().sweeps == sweep
        assert store.guests()[LXC].name == f"n{sweep}"
        assert isinstance(store.holds(), Unreadable) is (meaning == UNKNOWN)
    assert ears.names == ["store_failed"]
    assert meaning in ears.heard[0][1]


def recovers(opened: Open, store: SqliteStore, failed: int = 1) -> None:
    """All that had been kept is written with the first save that works."""
    kept = store.guests()
    store.save(NODE, [], [])
    store.publish(board())
    assert (store.holds(), store.take_rearms()) == (list_holds(store._file.parent), ())
    store.drop_holds([])
    assert opened.ears.names == ["store_failed"] * failed + ["store_restored"]
    store.close()
    again = opened(store._file.parent)
    assert (again.node(), again.guests()) == (NODE, kept)
    again.close()


def test_a_full_disk(opened: Open, tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", "size=256k") as disk:
        store = opened(disk)
        store.save(NODE, [DOWN, UP], [])
        add_hold(disk, HOLD)
        assert store.holds() == (HOLD,)
        request_rearm(disk, 101)
        with (disk / "filler").open("wb", buffering=0) as filler, pytest.raises(OSError):
            while True:
                filler.write(bytes(4096))
        store.save(replace(NODE, sweeps=100), [replace(UP, id=GuestId(GuestKind.LXC, n), name="x" * 200) for n in range(200, 900)], [VM])
        assert opened.ears.names == ["store_failed"]
        assert store.holds() == (HOLD,)
        (disk / "filler").unlink()
        with pytest.raises(StoreUnavailable, match="full"):
            big = replace(HOLD, reason="y" * 500_000)
            add_hold(disk, big)
        store.save(NODE, [], [GuestId(GuestKind.LXC, n) for n in range(210, 900)])
        assert opened.ears.names == ["store_failed", "store_restored"]
        assert store.take_rearms() == (101,)
        kept = store.guests()
        assert len(kept) == 11
        store.close()
        again = opened(disk)
        assert again.guests() == kept
        assert again.holds() == (HOLD,)
        again.close()


def test_no_room_at_all(opened: Open, tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", "size=16k,nr_inodes=3") as disk:
        (disk / "filler").write_bytes(bytes(4096 * 4))
        store = opened(disk)
        live_on(store, opened.ears, NOTHING_THERE)
        assert store.begins_empty()
        with pytest.raises(StoreUnavailable):
            request_rearm(disk, 101)
        subprocess.run(["mount", "-o", "remount,size=1m,nr_inodes=100", disk], check=True)
        (disk / "filler").unlink()
        recovers(opened, store)


def test_full_by_sqlites_own_measure(opened: Open) -> None:
    store = opened()
    store.save(NODE, [DOWN], [])
    assert store._connection is not None
    store._connection.execute("PRAGMA max_page_count=1")
    store.save(NODE, [replace(UP, name="x" * 50_000)], [])
    assert opened.ears.names == ["store_failed"]
    assert "free some space" in opened.ears.heard[0][1]
    recovers(opened, store)


def test_a_read_only_file_system(opened: Open, tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", "size=1m") as disk:
        first = opened(disk)
        first.save(NODE, [DOWN, UP], [])
        add_hold(disk, HOLD)
        first.save(NODE, [replace(UP, name="in the wal")], [])
        files = {name: (disk / name).read_bytes() for name in (FILE, FILE + "-wal")}
        first.close()
        for name, data in files.items():  # as after a crash: the last save is only in the WAL
            (disk / name).write_bytes(data)
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        store = opened(disk)
        assert not store.begins_empty()
        assert store.guests() == {LXC: DOWN, VM: replace(UP, name="in the wal")}
        assert store.holds() == (HOLD,)
        live_on(store, opened.ears, AS_BEFORE)
        with pytest.raises(StoreUnavailable):
            add_hold(disk, HOLD)
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
        recovers(opened, store)


@pytest.mark.parametrize("log", [False, True])
def test_read_only_and_no_folder_for_a_copy(log: bool, opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a WAL the file says it all; with one that cannot be played the last hold may be in there."""
    with tmpfs(tmp_path / "disk", "size=1m") as disk:
        first = opened(disk)
        first.save(NODE, [DOWN], [])
        add_hold(disk, HOLD)
        files = {name: (disk / name).read_bytes() for name in (FILE, FILE + "-wal")}
        first.close()
        for name, data in files.items() if log else ():
            (disk / name).write_bytes(data)
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        monkeypatch.setattr(tempfile, "TemporaryDirectory", none)
        store = opened(disk)
        assert store.begins_empty()
        if log:
            live_on(store, opened.ears, UNKNOWN)
        else:
            assert store.holds() == (HOLD,)
            assert "attempts made before are not known; holds that were read go on: 1" in opened.ears.heard[0][1]
        monkeypatch.undo()
        assert store.holds() == (HOLD,)
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
        assert store.holds() == (HOLD,)


def none(**_: object) -> None:
    raise FileNotFoundError(2, "No usable temporary directory found")


def test_a_copy_elsewhere(opened: Open, before: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the usual folder is read-only too, one that is no disk will do."""
    real, places = tempfile.TemporaryDirectory, []

    def made(prefix: str, dir: str | None) -> tempfile.TemporaryDirectory[str]:
        places.append(dir)
        return none() if dir is None else real(prefix=prefix, dir=opened.folder)  # type: ignore[return-value]

    monkeypatch.setattr(tempfile, "TemporaryDirectory", made)
    assert store_module._rest(before).guests == {LXC: DOWN, VM: UP}
    assert places == [None, "/dev/shm"]


def test_read_only_and_damaged(opened: Open, tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", "size=1m") as disk:
        (disk / FILE).write_bytes(b"x" * 5000)
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        store = opened(disk)
        assert store.begins_empty()
        live_on(store, opened.ears, UNKNOWN)
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
        recovers(opened, store, failed=2)
        assert "its holds are gone: set them again" in opened.ears.heard[1][1]
        assert (disk / "guestward.db.corrupt-1").exists()


def test_a_folder_in_its_place(opened: Open) -> None:
    (opened.folder / FILE).mkdir()
    store = opened()
    live_on(store, opened.ears, NOTHING_THERE)
    with pytest.raises(StoreUnavailable, match="not a file") as caught:
        read_board(opened.folder)
    assert caught.value.advice == "move it away"
    (opened.folder / FILE).rmdir()
    recovers(opened, store)


def test_a_link_is_not_followed(opened: Open, tmp_path: Path) -> None:
    (opened.folder / FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreUnavailable, match="not a file"):
        add_hold(opened.folder, HOLD)
    assert not (tmp_path / "elsewhere").exists()


def test_holds_behind_a_link_or_a_device(opened: Open, tmp_path: Path) -> None:
    (opened.folder / FILE).symlink_to("/dev/zero")
    live_on(opened(), opened.ears, UNKNOWN)


def test_a_missing_folder_that_comes_back(opened: Open, tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there"
    store = opened(folder)
    live_on(store, opened.ears, NOTHING_THERE)
    folder.parent.mkdir()
    recovers(opened, store)


def test_a_file_in_place_of_the_folder(opened: Open, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    live_on(opened(tmp_path / "file"), opened.ears, NOTHING_THERE)


def as_nobody(work: Callable[[], None]) -> None:
    """Run it in a child without root's rights."""
    if os.geteuid() != 0:
        work()
        return
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            work()
            code = 0
        except BaseException:  # noqa: BLE001 - pytest must not go on in the child
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that others can reach: those of tmp_path are root's alone."""
    with tempfile.TemporaryDirectory(prefix="guestward-test-") as name:
        os.chmod(name, 0o777)
        yield Path(name)


@pytest.mark.parametrize("mode", [0o000, 0o444])
def test_a_file_that_we_may_not_write(mode: int, public: Path) -> None:
    first = SqliteStore(public, Ears())
    first.save(NODE, [DOWN], [])
    first.close()
    (public / FILE).chmod(mode)

    def work() -> None:
        ears = Ears()
        store = SqliteStore(public, ears)
        assert store.begins_empty() is (mode == 0)
        live_on(store, ears, UNKNOWN if mode == 0 else AS_BEFORE)
        assert "belong to the service's user" in ears.heard[0][1]
        with pytest.raises(StoreUnavailable):
            add_hold(public, HOLD)

    as_nobody(work)


def test_a_folder_that_we_may_not_enter(public: Path) -> None:
    closed = public / "closed"
    closed.mkdir(mode=0o700 if os.geteuid() == 0 else 0o000)

    def work() -> None:
        ears = Ears()
        live_on(SqliteStore(closed, ears), ears, UNKNOWN)
        with pytest.raises(StoreUnavailable, match="Permission denied"):
            read_board(closed)

    as_nobody(work)


def test_root_makes_the_file_for_the_owner_of_the_folder(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("not root")
    os.chown(tmp_path, 65534, 65534)
    add_hold(tmp_path, HOLD)
    status = (tmp_path / FILE).stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (65534, 65534, 0o640)


# Others at the same file


def test_a_lock_that_lasts(opened: Open, before: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "BUSY_S", 0.05)
    store = opened()
    with closing(sqlite3.connect(before, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        begun = time.monotonic()
        store.save(replace(NODE, sweeps=9), [UP], [])
        store.save(replace(NODE, sweeps=10), [UP], [])
        store.publish(board())
        assert store.holds() == (HOLD,)  # reading goes on
        store.drop_holds([HOLD])
        assert store.holds() == ()  # ended, though still in the file
        with pytest.raises(StoreUnavailable, match="locked") as caught:
            request_rearm(opened.folder, 101)
        assert "find out which process" in caught.value.advice
        assert time.monotonic() - begun < 1
        assert opened.ears.names == ["store_failed"]
        other.execute("COMMIT")
    store.save(NODE, [], [])
    store.publish(board())
    assert list_holds(opened.folder) == (HOLD,)
    assert store.holds() == ()
    assert list_holds(opened.folder) == ()
    assert opened.ears.names == ["store_failed", "store_restored"]


def test_rearms_that_cannot_be_deleted_are_not_returned(opened: Open, before: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "BUSY_S", 0.05)
    store = opened()
    request_rearm(opened.folder, 101)
    with closing(sqlite3.connect(before, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert store.take_rearms() == ()
        other.execute("ROLLBACK")
    assert store.take_rearms() == (101,)


def test_deleted_under_its_hands(opened: Open, before: Path) -> None:
    store = opened()
    assert store.holds() == (HOLD,)
    store.save(NODE, [replace(UP, name="new")], [])
    before.unlink()
    assert store.holds() == (HOLD,)
    store.save(NODE, [], [])
    assert list_holds(opened.folder) == (HOLD,)
    store.close()
    assert opened().guests() == {LXC: DOWN, VM: replace(UP, name="new")}
    assert opened.ears.heard == []


def test_replaced_by_the_cli_under_its_hands(opened: Open, before: Path) -> None:
    store = opened()
    assert store.holds() == (HOLD,)
    before.rename(before.with_name("old"))
    add_hold(opened.folder, NODE_HOLD)
    assert store.holds() == (NODE_HOLD, HOLD)


def test_two_make_it_at_once(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "BUSY_S", 0.1)
    descriptor = os.open(opened.folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(StoreUnavailable, match="another process"):
            add_hold(opened.folder, HOLD)
    finally:
        os.close(descriptor)
    made = []
    threads = [threading.Thread(target=lambda n=n: made.append(add_hold(opened.folder, replace(HOLD, vmid=n)))) for n in range(101, 105)]
    monkeypatch.setattr(store_module, "BUSY_S", 2.0)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == len(list_holds(opened.folder)) == 4
    assert [file.name for file in opened.folder.iterdir()] == [FILE]


def test_a_file_that_was_made_in_between(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    add_hold(opened.folder, HOLD)
    store_module._create(opened.folder / FILE)
    assert list_holds(opened.folder) == (HOLD,)


# Defects of our own


def test_a_memory_that_cannot_be_written_does_not_cost_the_others_theirs(opened: Open) -> None:
    store = opened()
    store.save(NODE, [replace(DOWN, down_since=float("nan")), UP], [])
    assert opened.ears.names == ["store_failed"]
    assert "defect in Guestward" in opened.ears.heard[0][1]
    store.save(NODE, [DOWN], [])
    assert opened.ears.names == ["store_failed", "store_restored"]
    store.save(NodeMemory(mass_stop_until=float("inf")), [], [])
    assert opened.ears.names[2:] == ["store_failed"]
    store.close()
    assert opened().guests() == {LXC: DOWN, VM: UP}


def test_a_close_that_fails(opened: Open) -> None:
    class Broken:
        def close(self) -> None:
            raise sqlite3.OperationalError("disk I/O error")

    store = opened()
    store.close()
    store._connection = Broken()  # type: ignore[assignment]
    store.close()
    store.save(NODE, [UP], [])
    assert opened.ears.heard == []


def test_a_connection_that_cannot_be_set_up(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(sqlite3.Connection):
        def execute(self, *_: object) -> sqlite3.Cursor:  # type: ignore[override]
            raise sqlite3.OperationalError("out of memory")

    real = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **kwargs: real(*args, factory=Broken, **kwargs))
    live_on(opened(), opened.ears, NOTHING_THERE)


# kill -9

CHILD = """
import sys
from pathlib import Path
from guestward.adapters.store import SqliteStore
from guestward.model.guest import GuestId, GuestKind
from guestward.model.memory import GuestMemory, NodeMemory
store = SqliteStore(Path(sys.argv[1]), None)
for sweep in range(1, 1_000_000):
    guests = [GuestMemory(GuestId(GuestKind.LXC, 100 + n), name=str(sweep)) for n in range(30)]
    store.save(NodeMemory("boot", True, sweeps=sweep), guests, [])
    print(sweep, flush=True)
"""


def test_killed_in_the_middle_of_a_save(opened: Open) -> None:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(opened.folder)], stdout=subprocess.PIPE, env={"PYTHONPATH": path}, text=True)
    assert child.stdout is not None
    with child.stdout as lines:
        for line in lines:
            if int(line) == 20:
                break
        child.send_signal(signal.SIGKILL)
        rest = lines.read().split("\n")
    child.wait()
    told = max([20, *(int(line) for line in rest[:-1])])
    store = opened()
    assert not store.begins_empty()
    sweep = store.node().sweeps
    assert sweep in (told, told + 1)  # whatever was told is there, and never half of one
    assert {memory.name for memory in store.guests().values()} == {str(sweep)}
    assert opened.ears.heard == []


# Looking at it beforehand


def picture(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if not file.name.endswith("-shm")}


def test_nothing_to_find(opened: Open, before: Path, tmp_path: Path) -> None:
    assert inspect(tmp_path / "none") is None
    assert not (tmp_path / "none").exists()
    data = picture(opened.folder)
    assert inspect(opened.folder) is None
    assert picture(opened.folder) == data
    store = opened()
    store.save(replace(NODE, sweeps=8), [UP], [])  # now it is in use
    data = picture(opened.folder)
    assert inspect(opened.folder) is None
    assert picture(opened.folder) == data


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_found_beforehand(name: str, opened: Open, before: Path) -> None:
    DAMAGE[name](before)
    data = picture(opened.folder)
    found = inspect(opened.folder)
    assert found is not None
    assert "the agent sets it aside when it starts: attempts made before are forgotten; " in found
    assert ("holds are gone: set them again" in found) is (name in HOLDS_LOST)
    assert "\n" not in found
    assert picture(opened.folder) == data
    opened()
    assert opened.ears.names == ["store_failed"]  # as foretold


def test_newer_is_found_beforehand(opened: Open, before: Path) -> None:
    run_sql("PRAGMA user_version=99")(before)
    data = picture(opened.folder)
    found = inspect(opened.folder)
    assert found is not None
    assert "newer Guestward" in found
    assert "goes on in memory: attempts made before are not known; holds that were read go on: 1" in found
    run_sql("DROP TABLE hold")(before)
    assert "no guest is started until" in str(inspect(opened.folder))
    run_sql(f"PRAGMA user_version={store_module.VERSION}")(before)
    assert "its holds are gone" in str(inspect(opened.folder))
    assert picture(opened.folder).keys() == data.keys()


def test_older_is_looked_at_as_it_will_be(opened: Open, before: Path) -> None:
    before.unlink()
    with closing(sqlite3.connect(before)) as other:
        other.execute("PRAGMA user_version=-3")
        other.execute("CREATE TABLE x (y)")
    data = picture(opened.folder)
    assert inspect(opened.folder) is None
    assert picture(opened.folder) == data
    with closing(sqlite3.connect(before)) as other:
        other.execute("CREATE TABLE meta (y)")
    assert "already exists" in str(inspect(opened.folder))
    opened()
    assert opened.ears.names == ["store_failed"]


def test_what_is_no_file_is_found_beforehand(opened: Open) -> None:
    (opened.folder / FILE).mkdir()
    assert "is not a file" in str(inspect(opened.folder))
