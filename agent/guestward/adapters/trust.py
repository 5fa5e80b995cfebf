"""Whom the token is shown to: TLS trust in PVE's API, decided before the first byte of a request is sent.

Three ways (pve-facts I): a CA file, the system's CAs, or the pinned SHA-256 fingerprint of the one certificate. There is no fourth.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from guestward.config import PveSection
from guestward.model.task import bounded
from guestward.ports import Clock


class TrustError(Exception):
    """The peer is not trusted, or nobody can say. One line: what was found, what to do."""


class Budget:
    """How long the call under way may still take, counted by the host's boot clock."""

    def __init__(self, clock: Clock) -> None:
        """No time at all until `begin`."""
        self.clock = clock
        self._end = 0.0

    def begin(self, longest: float, deadline: float) -> None:
        """A call begins: it ends after `longest` seconds, or at the deadline when that comes first."""
        self._end = min(self.clock.boottime() + longest, deadline)

    def left(self) -> float:
        """Seconds that are left. Raises TimeoutError when there are none."""
        left = self._end - self.clock.boottime()
        if left <= 0:
            raise TimeoutError("no time left")
        return left


class _Context(ssl.SSLContext):
    budget: Budget


class _BoundedSocket(ssl.SSLSocket):
    """No wait outlasts the call: the limit is set anew before each one, so a peer that drips bytes gains nothing (C27, C58)."""

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        self.settimeout(cast(_Context, self.context).budget.left())
        return super().recv_into(*args, **kwargs)

    def send(self, *args: Any, **kwargs: Any) -> int:
        self.settimeout(cast(_Context, self.context).budget.left())
        return super().send(*args, **kwargs)


# x509_vfy.h; 7 is what a CA of the same name but with another key ends in
_NOT_YET_VALID, _EXPIRED = 9, 10
_UNKNOWN_CA = frozenset({2, 7, 18, 19, 20, 21})
_WRONG_NAME = frozenset({62, 64})


class Trust:
    """Opens TLS connections to the one peer that the configuration trusts."""

    def __init__(self, section: PveSection, budget: Budget) -> None:
        """Reads nothing yet: the CA file is read at the first connection."""
        self._ca_file, self._pin = section.ca_file, section.fingerprint
        self._peer = f"the certificate of {section.host}:{section.port}"
        self._name = section.server_name or section.host.partition("%")[0]
        self._budget = budget
        self._context: _Context | None = None

    def open(self, connect: Callable[[], socket.socket]) -> ssl.SSLSocket:
        """Connect and decide. Raises TrustError, or OSError when the peer did not get that far.

        A CA file is read again, and one more connection is made, when the certificate is not trusted: `pvecm updatecerts` may
        have replaced both (C69). Nothing was sent before, so this holds for every kind of request.
        """
        try:
            return self._secure(connect)
        except TrustError:
            if self._ca_file is None:
                raise
        self._context = self._new_context()
        return self._secure(connect)

    def _secure(self, connect: Callable[[], socket.socket]) -> ssl.SSLSocket:
        self._check_name()
        if self._context is None:
            self._context = self._new_context()
        with connect() as plain:
            plain.settimeout(self._budget.left())
            try:
                tls = self._context.wrap_socket(plain, server_hostname=self._name)
            except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
                raise ConnectionResetError("closed during the TLS handshake") from None
            except ssl.SSLError as error:
                raise TrustError(self._explain(error)) from None
        self._check_pin(tls)
        return tls

    def _check_name(self) -> None:
        try:
            self._name.encode("idna")
        except UnicodeError:
            raise TrustError(f"{bounded(self._name, 80)} is no host name; correct [pve] host or server_name") from None

    def _new_context(self) -> _Context:
        context = _Context(ssl.PROTOCOL_TLS_CLIENT)
        context.budget = self._budget
        context.sslsocket_class = _BoundedSocket
        # PVE's own CAs made before pve-cluster 9.1.2 lack keyUsage, which the strict mode of Python 3.13 refuses (pve-facts I).
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if self._pin is not None:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif self._ca_file is not None:
            _load_ca(context, self._ca_file)
        else:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        return context

    def _check_pin(self, tls: ssl.SSLSocket) -> None:
        if self._pin is None:
            return
        seen = hashlib.sha256(tls.getpeercert(binary_form=True) or b"").hexdigest()
        if hmac.compare_digest(seen, self._pin):
            return
        tls.close()
        raise TrustError(
            f"{self._peer} is not the pinned one: expected {self._pin}, seen {seen}; if it was renewed, compare it with"
            " `openssl x509 -noout -sha256 -fingerprint -in /etc/pve/local/pve-ssl.pem` and change [pve] fingerprint"
        )

    def _explain(self, error: ssl.SSLError) -> str:
        if not isinstance(error, ssl.SSLCertVerificationError):
            return f"the TLS handshake failed: {bounded(error.reason or error.strerror, 120)}; is it pveproxy that listens there?"
        now = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(self._budget.clock.wall()))
        if error.verify_code == _NOT_YET_VALID:
            return f"{self._peer} is not yet valid; check the host's clock, it says {now}"
        if error.verify_code == _EXPIRED:
            return f"{self._peer} has expired; renew it with `pvecm updatecerts --force`, and check the host's clock, it says {now}"
        if error.verify_code in _WRONG_NAME:
            return (
                f"{self._peer} does not bear the name {self._name}; set [pve] server_name to a name that it bears, or pin its fingerprint"
            )
        if error.verify_code in _UNKNOWN_CA:
            return f"{self._peer} is not signed by {self._unknown_ca()}"
        return f"{self._peer} is not trusted: {bounded(error.verify_message, 120)}"

    def _unknown_ca(self) -> str:
        if self._ca_file is None:
            return "a CA that this system trusts; set [pve] ca_file (PVE's own is /etc/pve/pve-root-ca.pem), or pin its fingerprint"
        return (
            f"the CA in {self._ca_file}; if this node has a certificate of its own (pveproxy-ssl.pem),"
            " set [pve] server_name and no ca_file, or pin its fingerprint"
        )


def _load_ca(context: ssl.SSLContext, file: Path) -> None:
    try:
        context.load_verify_locations(cafile=str(file))
    except ssl.SSLError:
        raise TrustError(f"[pve] ca_file {file} holds no certificate") from None
    except OSError as error:
        raise TrustError(
            f"[pve] ca_file {file} cannot be read: {error.strerror};"
            " PVE's own is for root and group www-data only, and is missing while pmxcfs is down"
        ) from None
