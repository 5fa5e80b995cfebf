"""Command lines of processes that work at a backup: those that archive a guest, and vzdump itself.

Sources: pve-manager 14a22df3 (VZDump.pm, API2/VZDump.pm), pve-container 94f5585 (VZDump/LXC.pm), qemu-server e6352be6
(VZDump/QemuServer.pm), pve-common f665029 (RESTEnvironment.pm).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from guestward.model.task import Upid, UpidError

_COMPRESSORS = frozenset({"zstd", "gzip", "lzop", "pigz"})  # pve-manager VZDump.pm:compressor_info
_SHELLS = frozenset({"bash", "sh", "dash"})
_WRITERS = _COMPRESSORS | {"tar", "cstream", "rsync", "vma"}
ARCHIVERS = _WRITERS | _SHELLS | {"lxc-usernsexec", "proxmox-backup-client"}
"""The programs that can be one; any other needs no look at its arguments."""
_ARCHIVE = re.compile(r"vzdump-(?:lxc|qemu)-([1-9]\d{2,8})-|vzdumptmp\d+_([1-9]\d{2,8})(?!\d)")  # VZDump.pm:exec_backup_task
_TMPDIR = re.compile(r".*/(?:vzdump-lxc-\d+-[^/]*\.tmp|vzdumptmp\d+_\d+)/*")
_VMID = re.compile(r"[1-9]\d{2,8}")
_TITLE = "task UPID:"
_TITLE_TYPE = re.compile(r"task UPID:[^:]*:[^:]*:[^:]*:[^:]*:([^:]+):")


@dataclass(frozen=True, slots=True)
class VzdumpJob:
    """A vzdump that lives. vmid: its only guest; None for a job of several guests, or where it cannot be told."""

    vmid: int | None

    def covers(self, vmid: int) -> bool:
        """Whether it may be about that guest."""
        return self.vmid in (None, vmid)


def vzdump_job(argv: Sequence[str]) -> VzdumpJob | None:
    """The vzdump that this command line is, None when it is none.

    A worker's title is `task UPID:...` (RESTEnvironment.pm:fork_worker sets $0; Perl pads it with blanks, or cuts it where the old
    command line was shorter). The program itself, `/usr/bin/perl -T /usr/bin/vzdump ...`, has its worker as child and is told as a
    job of an unknown set.
    """
    title = argv[0].strip() if argv else ""
    if title.startswith(_TITLE):
        return _worker(title)
    program = basename(title)
    if program == "perl":
        program = basename(next((argument for argument in argv[1:] if not argument.startswith("-")), ""))
    return VzdumpJob(None) if program == "vzdump" else None


def _worker(title: str) -> VzdumpJob | None:
    try:
        upid = Upid.parse(title.removeprefix("task "))
    except UpidError:
        cut = _TITLE_TYPE.match(title)
        return None if cut is not None and cut[1] != "vzdump" else VzdumpJob(None)
    if upid.type != "vzdump":
        return None
    return VzdumpJob(int(upid.id) if _VMID.fullmatch(upid.id) else None)


def basename(path: str) -> str:
    """What follows the last slash."""
    return path.rpartition("/")[2]


def archived_guest(argv: Sequence[str]) -> int | None:
    """The guest that this command line archives, None when it does not: restores read the same archives, and `grep` names them.

    The command lines are those of pve-container VZDump/LXC.pm:archive and qemu-server VZDump/QemuServer.pm:archive_vma, archive_pbs.
    kvm never counts: it names volumes, and a VM's own backup job lives and dies inside it.
    """
    if argv and basename(argv[0]) in _SHELLS:
        return _in_script(argv[1:])
    return _in_command(argv)


def _in_command(argv: Sequence[str]) -> int | None:
    """One program, with or without the user namespace of an unprivileged container around it."""
    if argv and basename(argv[0]) == "lxc-usernsexec" and "--" in argv:
        argv = argv[argv.index("--") + 1 :]
    program, arguments = basename(argv[0]) if argv else "", argv[1:]
    if program == "proxmox-backup-client":
        return _in_client_call(arguments)
    return _named(arguments) if program in _WRITERS and _writes_archive(program, arguments) else None


def _writes_archive(program: str, arguments: Sequence[str]) -> bool:
    if program == "tar":  # `tar cpf - ...`; a restore is `tar xpf -`
        bundle = arguments[0] if arguments else ""
        return (not bundle.startswith("-") and "c" in bundle) or _option("c", "--create", arguments)
    if program == "vma":  # `vma create`; a restore is `vma extract`
        return arguments[:1] == ["create"]
    if program == "rsync":  # suspend mode copies the container into the temporary directory (VZDump/LXC.pm:rsync_vm)
        return bool(arguments) and _TMPDIR.fullmatch(arguments[-1]) is not None
    if program == "cstream":  # a restore reads `cstream -t N -- ARCHIVE` (QemuServer.pm:restore_vma_archive)
        return "--" not in arguments
    return not _option("dtlx", "--(?:decompress|uncompress|extract|test|list)", arguments)  # `zstd -q -d -c ARCHIVE`


def _option(letters: str, words: str, arguments: Sequence[str]) -> bool:
    pattern = re.compile(rf"-[A-Za-z]*[{letters}][A-Za-z]*|{words}")
    return any(pattern.fullmatch(argument) for argument in arguments)


def _named(arguments: Iterable[str]) -> int | None:
    match = next(filter(None, map(_ARCHIVE.search, arguments)), None)
    return int(match[1] or match[2]) if match else None


def _in_client_call(arguments: Sequence[str]) -> int | None:
    """`proxmox-backup-client backup ... --backup-type ct --backup-id VMID`; a backup of the host itself has the type `host`."""
    if arguments[:1] != ["backup"] or _value("--backup-type", arguments) == "host":
        return None
    vmid = _value("--backup-id", arguments)
    return int(vmid) if _VMID.fullmatch(vmid) else None


def _value(option: str, arguments: Sequence[str]) -> str:
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        if argument == option:
            return following
        if argument.startswith(f"{option}="):
            return argument.partition("=")[2]
    return ""


def _in_script(arguments: Sequence[str]) -> int | None:
    """`bash -c "set -o pipefail && tar cpf ... | zstd >ARCHIVE"` (pve-common Cmd.pm:run), and `sh -c` of `vma create exec:...`."""
    if len(arguments) < 2 or arguments[0] != "-c":
        return None
    lexer = shlex.shlex(arguments[1], posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        words = list(lexer)
    except ValueError:  # quotes that do not close: not a line that PVE wrote
        return None
    written = _named(target for redirect, target in pairwise(words) if redirect in (">", ">>"))
    if written is not None:
        return written
    return next((vmid for command in _commands(words) if (vmid := _in_command(command)) is not None), None)


def _commands(words: Iterable[str]) -> Iterator[list[str]]:
    command: list[str] = []
    for word in words:
        if set(word) <= set("|&;()"):
            yield command
            command = []
        else:
            command.append(word)
    yield command
