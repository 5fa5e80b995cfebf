"""Who calls, and as whom the work is done: commands are called by root, as `pct` and `qm` are, and root is given up at once."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping

from guestward.cli.output import CommandError

SERVICE_USER = "guestward"


def caller(environ: Mapping[str, str] = os.environ) -> str:
    """The person behind the command: the one who called sudo, or else the user of this process."""
    sudo = environ.get("SUDO_USER", "")
    if sudo:
        return f"{sudo} (sudo)"
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"


def become_service_user() -> None:
    """Give up root for the service user with all its groups, for good. Where that user does not exist, go on as who we are.

    Files of the state folder would otherwise belong to root, and `check` would read what the agent cannot.
    Raises CommandError when root cannot be given up.
    """
    if os.geteuid() != 0:
        return
    try:
        user = pwd.getpwnam(SERVICE_USER)
    except KeyError:
        return
    try:
        os.initgroups(user.pw_name, user.pw_gid)
        os.setresgid(user.pw_gid, user.pw_gid, user.pw_gid)
        os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)
    except OSError as error:
        raise CommandError("privileges", f"cannot become the user {SERVICE_USER}: {error.strerror}", "run this as root") from None
