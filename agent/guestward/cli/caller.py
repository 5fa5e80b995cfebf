"""Who calls, and as whom the work is done: commands are called by root, as `pct` and `qm` are, and root is given up at once."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping

from guestward.cli.output import CommandError
from guestward.model.task import bounded

SERVICE_USER = "guestward"


def caller(environ: Mapping[str, str] = os.environ) -> str:
    """The person behind the command: the one who called sudo, or else the user of this process."""
    sudo = bounded(environ.get("SUDO_USER", ""), 60)
    return f"{sudo} (sudo)" if sudo else _me()


def _me() -> str:
    uid = os.getuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def become_service_user() -> str:
    """Give up root for the service user with all its groups, for good. Where that user does not exist, go on as who we are.

    Files of the state folder would otherwise belong to root, and `check` would read what the agent cannot.
    Returns what a reader of `check` should know about it, or "". Raises CommandError when root cannot be given up.
    """
    if os.geteuid() != 0:
        me = _me()
        return "" if me == SERVICE_USER else f"checked as {me}, who may see more or less than the service user {SERVICE_USER}"
    try:
        user = pwd.getpwnam(SERVICE_USER)
    except KeyError:
        return f"checked as root; the service user {SERVICE_USER} does not exist"
    try:
        os.initgroups(user.pw_name, user.pw_gid)
        os.setresgid(user.pw_gid, user.pw_gid, user.pw_gid)
        os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)
    except OSError as error:
        hint = "root without the capabilities SETUID and SETGID cannot: call this outside of the container or unit that took them"
        raise CommandError("privileges", f"cannot become the user {SERVICE_USER}: {error.strerror}", hint) from None
    return ""
