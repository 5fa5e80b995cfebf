"""The module that spawns processes: what a program can do to us, and that none of it raises or lasts."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from guestward.adapters.process import OUTPUT_LIMIT, Completed, run
from guestward.model.reading import Unreadable


def sh(script: str, timeout: float = 5) -> Completed | Unreadable:
    return run(["/bin/sh", "-c", script], timeout)


def until(true: Callable[[], bool], limit: float = 5) -> None:
    end = time.monotonic() + limit
    while not true():
        assert time.monotonic() < end, "did not come true in time"
        threading.Event().wait(0.005)


def dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_program_that_ends_is_told_with_code_and_both_streams() -> None:
    assert sh("echo out; echo err >&2; exit 3") == Completed(3, "out\n", "err\n")


def test_a_program_killed_by_a_signal_has_its_number_as_negative_code() -> None:
    assert sh("kill -9 $$") == Completed(-9, "", "")


def test_the_environment_is_clean_and_stdin_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GUESTWARD_SECRET", "x")
    done = run(["/usr/bin/env"], 5)
    assert isinstance(done, Completed)
    assert sorted(done.stdout.split()) == ["LC_ALL=C", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
    assert run(["/bin/cat"], 5) == Completed(0, "", "")
    assert run(["/bin/pwd"], 5) == Completed(0, "/\n", "")


def test_no_shell_reads_the_arguments() -> None:
    assert run(["/bin/echo", "$HOME; rm -rf *"], 5) == Completed(0, "$HOME; rm -rf *\n", "")


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        ([], "no program: not an absolute path"),
        (["systemctl"], "systemctl: not an absolute path"),
        (["/nonexistent/x"], "/nonexistent/x: No such file or directory"),
        (["/etc"], "/etc: Permission denied"),
        (["/bin/echo", "a\0b"], "/bin/echo: embedded null byte"),
    ],
)
def test_what_cannot_be_started_is_a_value(argv: list[str], why: str) -> None:
    assert run(argv, 5) == Unreadable(why)


def test_a_file_that_is_no_program_is_a_value(tmp_path: Path) -> None:
    program = tmp_path / "x"
    program.write_bytes(b"\x7fnot a program")
    program.chmod(0o755)
    assert run([str(program)], 5) == Unreadable(f"{program}: Exec format error")


def test_a_program_that_hangs_is_killed_with_all_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    began = time.monotonic()
    assert sh(f"sleep 300 & echo $! $$ > {pids}; wait", 0.3) == Unreadable("/bin/sh: no answer within 0.3s, killed")
    assert time.monotonic() - began < 2
    until(lambda: all(dead(int(pid)) for pid in pids.read_text().split()))


def test_a_program_that_closes_its_output_and_hangs_is_killed_too() -> None:
    assert sh("exec >&- 2>&-; exec sleep 300", 0.2) == Unreadable("/bin/sh: no answer within 0.2s, killed")


def test_a_child_that_holds_the_output_open_does_not_keep_us(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    began = time.monotonic()
    assert sh(f"sleep 300 & echo $! > {pid}; echo done") == Completed(0, "done\n", "")
    assert time.monotonic() - began < 2
    os.kill(int(pid.read_text()), 9)


def test_a_flood_is_read_to_its_end_and_kept_only_up_to_the_limit() -> None:
    done = sh("head -c 1000000 /dev/zero; head -c 300000 /dev/zero >&2; exit 7")
    assert isinstance(done, Completed)
    assert (done.code, len(done.stdout), len(done.stderr), done.cut) == (7, OUTPUT_LIMIT, OUTPUT_LIMIT, True)


def test_exactly_the_limit_is_not_cut() -> None:
    done = sh(f"head -c {OUTPUT_LIMIT} /dev/zero")
    assert isinstance(done, Completed)
    assert (len(done.stdout), done.cut) == (OUTPUT_LIMIT, False)


def test_an_endless_flood_ends_with_the_time_limit() -> None:
    assert sh("exec cat /dev/zero", 0.2) == Unreadable("/bin/sh: no answer within 0.2s, killed")


def test_output_that_is_no_text_is_replaced_not_raised() -> None:
    assert sh(r"printf '\377'") == Completed(0, "\ufffd", "")


def test_the_complaint_is_one_line_and_prefers_stderr() -> None:
    assert Completed(1, "out", "two\nlines\x1b[0m").complaint == "two lines [0m"
    assert Completed(1, "out\n", " ").complaint == "out"
    assert Completed(1, "", "").complaint == "no output"


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for script in ("true", "exec sleep 300"):
        sh(script, 0.2)
    assert len(os.listdir("/proc/self/fd")) == before


def test_our_descriptors_do_not_reach_the_program(tmp_path: Path) -> None:
    with (tmp_path / "secret").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        done = run([sys.executable, "-ISc", "import os; print(sorted(os.listdir('/proc/self/fd'))[:4])"], 5)
    assert isinstance(done, Completed)
    assert done.stdout == "['0', '1', '2', '3']\n"  # 3 is the listing's own
