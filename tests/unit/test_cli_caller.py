"""Root is given up for the service user, in a child process that has nothing to lose."""

from __future__ import annotations

import os
import pwd
import traceback
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from guestward.cli.caller import become_service_user, caller
from guestward.cli.output import CommandError

NOBODY, GROUP, EXTRA = 65534, 65534, 4242
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give up root")


def in_child(do: Callable[[], object]) -> None:
    with warnings.catch_warnings():  # Python 3.12 on warns where threads are left over from other tests
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            do()
        except BaseException:  # noqa: BLE001 - the child must end here
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def entry(name: str) -> Any:
    assert name == "guestward"
    return SimpleNamespace(pw_name="guestward", pw_uid=NOBODY, pw_gid=GROUP)


def nobody_there(_: object) -> Any:
    raise KeyError


def test_the_caller_is_the_one_behind_sudo() -> None:
    assert caller({"SUDO_USER": "alice"}) == "alice (sudo)"
    assert caller({"SUDO_USER": "al\x1b[2Jice" + "x" * 100}).isprintable()
    assert caller({}) == pwd.getpwuid(os.getuid()).pw_name


def test_a_caller_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pwd, "getpwuid", nobody_there)
    assert caller({}) == f"uid {os.getuid()}"


@root_only
def test_root_is_given_up_for_good_with_all_its_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pwd, "getpwnam", entry)

    def child() -> None:
        os.setgroups([0, EXTRA])
        assert become_service_user() == ""
        assert os.getresuid() == (NOBODY,) * 3
        assert os.getresgid() == (GROUP,) * 3
        assert set(os.getgroups()) <= {GROUP}, "what root was a member of is gone"
        with pytest.raises(PermissionError):
            os.setresuid(0, 0, 0)
        with pytest.raises(PermissionError):
            os.setgroups([0])
        with pytest.raises(PermissionError):
            open("/etc/shadow").close()

    in_child(child)


@root_only
@pytest.mark.parametrize("call", ["initgroups", "setresgid", "setresuid"])
def test_root_that_cannot_be_given_up_does_nothing(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pwd, "getpwnam", entry)

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    def child() -> None:
        setattr(os, call, refuse)
        with pytest.raises(CommandError) as caught:
            become_service_user()
        assert (caught.value.code, caught.value.exit_code) == ("privileges", 1)
        assert "cannot become the user guestward: Operation not permitted" in caught.value.message

    in_child(child)


def test_root_without_a_service_user_stays_root_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(pwd, "getpwnam", nobody_there)
    assert become_service_user() == "checked as root; the service user guestward does not exist"


@pytest.mark.parametrize(("name", "note"), [("guestward", False), ("alice", True)])
def test_anybody_else_stays_who_they_are(name: str, note: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(pwd, "getpwuid", lambda _: SimpleNamespace(pw_name=name))
    assert bool(become_service_user()) is note
