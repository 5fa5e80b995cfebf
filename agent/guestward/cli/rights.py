"""`guestward check --rights PATH...`: what the token may do, as PVE itself works it out. It only reads; install/host-install.sh asks it."""

from __future__ import annotations

from collections.abc import Sequence

from guestward.adapters.clock import HostClock, node_name
from guestward.adapters.pve import ProxmoxPve
from guestward.adapters.secret import SecretError, SecretFile
from guestward.cli.output import Answer, CommandError, Table, say
from guestward.config import Config
from guestward.ports import PveError, PveRefused


def rights(config: Config, paths: Sequence[str], output: str) -> int:
    """Print the token's privileges on every path that PVE lists and on each that is asked for. Raises CommandError."""
    clock = HostClock(config.host.root)
    node = node_name() if config.pve.node == "auto" else config.pve.node
    secret = SecretFile(config.pve.token_file, config.pve.token_id)
    try:
        secret.read()
    except SecretError as error:
        raise CommandError("secret", str(error)) from None
    pve = ProxmoxPve(config.pve, node, secret.read, clock)
    try:
        held = dict(pve.privileges(deadline=clock.boottime() + config.pve.timeout))
        for path in paths:
            held[path] = pve.privileges_on(path, deadline=clock.boottime() + config.pve.timeout)
    except PveError as error:
        refused = isinstance(error, PveRefused) and error.status == 401
        raise CommandError("token_refused" if refused else "api", str(error), f"see [pve] in {config.file}") from None
    finally:
        pve.close()
    # Names only: the value that PVE gives says whether a privilege is handed down, not whether it is held (pve-facts E3).
    found = {path: sorted(privileges) for path, privileges in sorted(held.items())}
    rows = [("path", "privileges"), *((path, " ".join(names) or "none") for path, names in found.items())]
    return say(Answer(node, clock.wall(), [Table(rows)], {"paths": found}), output)
