"""One agent a state folder: two would each start the same guest, and count its attempts in each other's file."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path

from guestward.model.reading import Unreadable

FILE = "guestward.lock"
_TRIES = 5
_MODE = 0o640
_NO_WRITING = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


class StateLock:
    """An flock in the state folder, which the kernel takes back with the process, however it ends. The pid in the file is for people."""

    def __init__(self, folder: Path) -> None:
        """Nothing is opened yet."""
        self._file = folder / FILE
        self._descriptor: int | None = None

    def take(self) -> int | Unreadable | None:
        """Take it without waiting.

        Returns None when it is ours, the pid of the other agent that has it (0 when that is not known), or Unreadable when the file
        cannot be made or locked, so that nobody can say.
        """
        if self._descriptor is not None:
            return None
        try:
            for _ in range(_TRIES):
                descriptor = self._open()
                if not self._lock(descriptor):
                    pid = _read_pid(descriptor)
                    os.close(descriptor)
                    return pid
                if self._is_in_place(descriptor):
                    self._descriptor = descriptor
                    _write_pid(descriptor)
                    return None
                os.close(descriptor)  # somebody deleted the file between the two: a lock on it would keep nobody out
        except OSError as error:
            return Unreadable(f"{self._file}: {error.strerror or error}")
        return Unreadable(f"{self._file} is deleted again and again")

    def release(self) -> None:
        """Let another agent have it."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with suppress(OSError):
                os.ftruncate(descriptor, 0)
            os.close(descriptor)

    def _open(self) -> int:
        with suppress(FileExistsError):
            self._file.parent.mkdir(mode=0o750)
        flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | flags, _MODE)
        except OSError as error:
            if error.errno not in _NO_WRITING:
                raise
            try:
                descriptor = os.open(self._file, os.O_RDONLY | flags)  # whoever may read it may lock it
            except OSError:
                raise error from None
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:  # it is written to, perhaps by root
                raise OSError(errno.EINVAL, "is not a file")
            owner = self._file.parent.stat()
            if os.geteuid() == 0 and status.st_uid != owner.st_uid:  # called by root: the service must be able to open it
                with suppress(OSError):
                    os.fchown(descriptor, owner.st_uid, owner.st_gid)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _lock(self, descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except BaseException:
            os.close(descriptor)
            raise
        return True

    def _is_in_place(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), self._file.lstat())
        except FileNotFoundError:
            return False


def _write_pid(descriptor: int) -> None:
    with suppress(OSError):  # a full disk: the lock holds all the same
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)


def _read_pid(descriptor: int) -> int:
    try:
        text = os.pread(descriptor, 32, 0).strip()
    except OSError:
        return 0
    return int(text) if text.isdigit() and len(text) <= 10 else 0
