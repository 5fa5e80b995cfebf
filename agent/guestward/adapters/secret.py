"""The API token's secret: where it is kept, and whether it can be one. It is read anew at each call and never kept here."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

FALLBACK = Path("/etc/guestward/token")
_MAX_BYTES = 4096
_TOKEN_ID = re.compile(rb"[^\s:/!=]+@[^\s:/!@=]+![^\s:/!@=]+")


class SecretError(Exception):
    """There is no usable secret. One line: which file, what is wrong, what to do; never any of the file's content but a token's id."""


def usable(secret: str) -> bool:
    """Whether it can be sent in a header: printable ASCII without blanks (PVE itself draws a UUID)."""
    return bool(re.fullmatch(r"[!-~]+", secret))


class SecretFile:
    """Finds and reads the secret: `[pve] token_file`, the systemd credential `token`, `/etc/guestward/token`.

    A configured file is the only one that is looked at. systemd.exec(5): credentials are in `$CREDENTIALS_DIRECTORY`.
    """

    def __init__(
        self,
        token_file: Path | None = None,
        token_id: str | None = None,
        environ: Mapping[str, str] = os.environ,
        fallback: Path = FALLBACK,
    ) -> None:
        """token_id: lets the file hold `TOKENID=SECRET`, the form of PVE's own header, and be checked for it."""
        self._token_file, self._token_id = token_file, token_id
        self._environ, self._fallback = environ, fallback

    @property
    def path(self) -> Path:
        """The file that `read` would read now."""
        if self._token_file is not None:
            return self._token_file
        directory = self._environ.get("CREDENTIALS_DIRECTORY")
        credential = Path(directory) / "token" if directory else None
        return credential if credential is not None and credential.exists() else self._fallback

    def read(self) -> str:
        """Read the secret. Raises SecretError."""
        path = self.path
        return self._checked(path, _content(path).strip())

    def _checked(self, path: Path, line: bytes) -> str:
        if not line:
            raise SecretError(f"token file {path} is empty; write the token's secret into it, as `pveum user token add` printed it")
        if b"\n" in line or b"\r" in line:
            raise SecretError(f"token file {path} has more than one line; leave only the line with the secret")
        owner, equals, rest = line.rpartition(b"=")
        if equals and _TOKEN_ID.fullmatch(owner):
            self._check_owner(path, owner)
            line = rest
        secret = line.decode("latin-1")
        if not usable(secret):
            raise SecretError(f"token file {path} holds blanks or other characters that no secret has; write the secret alone into it")
        return secret

    def _check_owner(self, path: Path, owner: bytes) -> None:
        found = owner.decode("utf-8", "replace")
        if found != self._token_id:
            raise SecretError(f"token file {path} is for token {found}, but [pve] token_id is {self._token_id}; one of the two is wrong")


def _content(path: Path) -> bytes:
    """The file's bytes. Only regular files: a FIFO would block for ever, a device would not end."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise SecretError(f"token file {path} is not a regular file; put the secret into a file")
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        raise SecretError(
            f"token file {path} does not exist; write the token's secret into it, or name another file in [pve] token_file"
        ) from None
    except OSError as error:
        raise SecretError(f"token file {path} cannot be read: {error.strerror}; let the agent's user read it") from None
    if len(content) > _MAX_BYTES:
        raise SecretError(f"token file {path} is longer than {_MAX_BYTES} bytes, which no secret is; write the secret alone into it")
    return content
