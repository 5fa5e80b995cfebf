"""The lock of the state folder: one agent, for as long as its process lives."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from guestward.adapters.statelock import FILE, StateLock
from guestward.model.reading import Unreadable

ROOT = os.geteuid() == 0
HOLDER = """
import sys
from pathlib import Path
from guestward.adapters.statelock import StateLock
lock = StateLock(Path(sys.argv[1]))
print(lock.take(), flush=True)
sys.stdin.read()
"""


class Locks:
    """Locks of one test."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.made = folder, list[StateLock]()

    def __call__(self, folder: Path | None = None) -> StateLock:
        self.made.append(StateLock(folder or self.folder))
        return self.made[-1]


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[Locks]:
    locks = Locks(tmp_path)
    yield locks
    for made in locks.made:
        made.release()


def test_one_has_it_and_says_who(lock: Locks) -> None:
    first, second = lock(), lock()
    assert first.take() is None
    assert first.take() is None
    assert second.take() == os.getpid()
    file = lock.folder / FILE
    assert file.read_text() == f"{os.getpid()}\n"
    assert file.stat().st_mode & 0o137 == 0
    first.release()
    first.release()
    assert second.take() is None
    assert first.take() == os.getpid()


def test_it_goes_with_the_process_however_it_ends(lock: Locks) -> None:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(lock.folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={"PYTHONPATH": path}, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "None\n"
        assert lock().take() == holder.pid
        holder.kill()
        holder.wait()
        assert lock().take() is None
    assert (lock.folder / FILE).read_text() == f"{os.getpid()}\n"


def test_no_child_inherits_it(lock: Locks) -> None:
    first = lock()
    assert first.take() is None
    assert first._descriptor is not None
    assert not os.get_inheritable(first._descriptor)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False) as child:
        first.release()
        assert lock().take() is None
        assert child.poll() is None


@pytest.mark.parametrize("text", [b"", b"no pid\n", b"-5\n", b"9" * 30, b"\xff\n", "²\n".encode()])
def test_a_holder_that_is_not_named(text: bytes, lock: Locks) -> None:
    file = lock.folder / FILE
    file.write_bytes(text)
    with file.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert lock().take() == 0
        assert file.read_bytes() == text
    assert lock().take() is None


def test_makes_its_folder_but_not_the_one_above(lock: Locks) -> None:
    assert lock(lock.folder / "state").take() is None
    assert (lock.folder / "state").stat().st_mode & 0o777 == 0o750
    taken = lock(lock.folder / "not" / "there").take()
    assert isinstance(taken, Unreadable)
    assert "No such file or directory" in taken.reason


@pytest.mark.parametrize("what", ["folder", "link", "hard link", "pipe", "no folder"])
def test_a_file_that_cannot_be_made(what: str, lock: Locks) -> None:
    folder, other = lock.folder / "state", lock.folder / "other"
    other.write_text("somebody's own")
    if what == "no folder":
        folder.write_text("")
    else:
        folder.mkdir()
    if what == "folder":
        (folder / FILE).mkdir()
    elif what == "link":
        (folder / FILE).symlink_to(other)
    elif what == "hard link":
        (folder / FILE).hardlink_to(other)
    elif what == "pipe":
        os.mkfifo(folder / FILE)
    taken = lock(folder).take()
    assert isinstance(taken, Unreadable)
    assert str(folder / FILE) in taken.reason or what == "no folder"
    assert other.read_text() == "somebody's own"


def test_a_file_that_was_deleted_meanwhile_is_no_lock(lock: Locks, monkeypatch: pytest.MonkeyPatch) -> None:
    real, file, times = fcntl.flock, lock.folder / FILE, [0]

    def flock(descriptor: int, operation: int) -> None:
        times[0] += 1
        if times[0] <= limit:
            file.unlink()
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    limit = 2
    first = lock()
    assert first.take() is None
    assert lock().take() == os.getpid(), "the file that is there is the one that is locked"
    first.release()
    limit = 1000
    taken = lock().take()
    assert isinstance(taken, Unreadable)
    assert "again and again" in taken.reason


def test_a_file_system_without_locks(lock: Locks, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    before = set(os.listdir("/proc/self/fd"))
    taken = lock().take()
    assert isinstance(taken, Unreadable)
    assert "No locks available" in taken.reason
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_full_disk_costs_the_pid_only(lock: Locks, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    assert lock().take() is None
    assert lock().take() == 0


@pytest.mark.parametrize("number", [13, 30])
def test_a_file_that_may_only_be_read_can_be_locked(number: int, lock: Locks, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def read_only(path: object, flags: int, *mode: int) -> int:
        if flags & os.O_RDWR:
            raise OSError(number, os.strerror(number))
        return real(path, flags, *mode)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", read_only)
    taken = lock().take()
    assert isinstance(taken, Unreadable)
    assert os.strerror(number) in taken.reason, "the reason, and not that of the second try"
    (lock.folder / FILE).write_text("7\n")
    assert lock().take() is None
    assert lock().take() == 7


@pytest.mark.skipif(not ROOT, reason="only root can give it away")
def test_root_makes_it_for_the_owner_of_the_folder(lock: Locks) -> None:
    os.chown(lock.folder, 65534, 65534)
    assert lock().take() is None
    status = (lock.folder / FILE).stat()
    assert (status.st_uid, status.st_gid) == (65534, 65534)
