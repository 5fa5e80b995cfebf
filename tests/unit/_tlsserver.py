"""A raw TLS responder: it reads requests and does with the connection whatever a test says. Made of ssl, socket and threading."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import itertools
import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_numbers = itertools.count()
NAMES = ("127.0.0.1", "::1", "localhost", "pve1")
PEM = serialization.Encoding.PEM
_USAGES = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
_USAGES += ("key_cert_sign", "crl_sign", "encipher_only", "decipher_only")


class Ca:
    """A root CA. key_usage=False leaves out what PVE's own CAs made before pve-cluster 9.1.2 lack (pve-facts I)."""

    def __init__(self, directory: Path, *, key_usage: bool = True, name: str = "Proxmox Virtual Environment") -> None:
        self.directory, self.key = directory, ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = self._builder(self.name, self.key.public_key(), days=(-10, 3650))
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        if key_usage:
            usage = x509.KeyUsage(**{word: word in ("key_cert_sign", "crl_sign") for word in _USAGES})
            builder = builder.add_extension(usage, critical=True)
        self.pem = builder.sign(self.key, hashes.SHA256()).public_bytes(PEM)
        self.file = directory / f"ca-{next(_numbers)}.pem"
        self.file.write_bytes(self.pem)

    def leaf(
        self,
        names: Iterable[str] = NAMES,
        days: tuple[float, float] = (-1, 30),
        purpose: x509.ObjectIdentifier = ExtendedKeyUsageOID.SERVER_AUTH,
    ) -> Leaf:
        """A certificate for these names, valid between these days from now."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "pve1")])
        alternatives = x509.SubjectAlternativeName([_general_name(name) for name in names])
        builder = self._builder(subject, key.public_key(), days).add_extension(alternatives, critical=False)
        certificate = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False).sign(self.key, hashes.SHA256())
        private = key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        file = self.directory / f"leaf-{certificate.serial_number}.pem"
        file.write_bytes(private + certificate.public_bytes(PEM))
        return Leaf(file, certificate.fingerprint(hashes.SHA256()).hex())

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey, days: tuple[float, float]) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder(subject_name=subject, issuer_name=self.name, public_key=key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + datetime.timedelta(days=days[0]))
            .not_valid_after(now + datetime.timedelta(days=days[1]))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
        )


@dataclass(frozen=True)
class Leaf:
    """A key and its certificate in one file."""

    file: Path
    fingerprint: str


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


@dataclass(frozen=True)
class Seen:
    """One request that arrived whole."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    connection: int


class Peer:
    """The server's end of one connection, for an action to do with as it likes."""

    def __init__(self, server: TlsServer, tls: ssl.SSLSocket) -> None:
        self.server, self.tls = server, tls

    def send(self, data: bytes) -> None:
        self.tls.sendall(data)

    def hang(self) -> None:
        """Say nothing until the test is over."""
        self.server.over.wait(30)

    def drip(self, data: bytes, every: float = 0.02) -> None:
        """One byte at a time for a few seconds, or until the test is over or the client goes."""
        for byte in itertools.chain(data, itertools.repeat(ord(" "), 150)):
            if self.server.over.wait(every):
                return
            self.tls.sendall(bytes([byte]))

    def reset(self) -> None:
        """Close with RST."""
        self.tls.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.tls.close()


Action = bytes | Callable[[Peer], None]


def answer(data: object = None, status: str = "200 OK", *, raw: bytes | None = None, **headers: str) -> bytes:
    """An answer as pveproxy gives it; raw: a body that is not `{"data": ...}`."""
    body = json.dumps({"data": data}).encode() if raw is None else raw
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *(f"{key.replace('_', '-')}: {value}" for key, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


class TlsServer:
    """Serves on 127.0.0.1 (or another address) in threads. Each request takes the next of `actions`; the last one stays.

    requests: what arrived whole. connections: how many TLS handshakes succeeded. refused: how many did not. bytes_seen: all that arrived.
    """

    def __init__(self, leaf: Leaf, address: str = "127.0.0.1", *, early: Callable[[socket.socket], None] | None = None) -> None:
        """early: instead of TLS, do this with each connection. greet (below): do this after the handshake, before anything is read."""
        self.greet: Callable[[Peer], None] | None = None
        self.actions: list[Action] = [answer([])]
        self.requests: list[Seen] = []
        self.bytes_seen = b""
        self.connections = self.refused = self.accepted = 0
        self.sni: list[str | None] = []
        self.over = threading.Event()
        self._early = early
        self.serve(leaf)
        self._listener = socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def serve(self, leaf: Leaf) -> None:
        """Show this certificate to new connections."""
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(leaf.file)
        self._context.sni_callback = lambda _tls, name, _context: self.sni.append(name)

    def close(self) -> None:
        """End every hang and every thread."""
        self.over.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(5)
            assert not thread.is_alive()

    def _accept(self) -> None:
        while True:
            try:
                plain, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            plain.settimeout(10)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            thread = threading.Thread(target=self._connection, args=(plain,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _connection(self, plain: socket.socket) -> None:
        with plain, contextlib.suppress(OSError):
            if self._early is not None:
                self._early(plain)
                return
            try:
                tls = self._context.wrap_socket(plain, server_side=True)
            except OSError:
                self.refused += 1
                return
            self.connections += 1
            with tls:
                if self.greet is not None:
                    self.greet(Peer(self, tls))
                self._requests(tls, self.connections)

    def _requests(self, tls: ssl.SSLSocket, number: int) -> None:
        for request in self._read(tls, number):
            self.requests.append(request)
            action = self.actions.pop(0) if len(self.actions) > 1 else self.actions[0]
            if callable(action):
                action(Peer(self, tls))
                return
            tls.sendall(action)

    def _read(self, tls: ssl.SSLSocket, number: int) -> Iterator[Seen]:
        pending = b""
        while not self.over.is_set():
            while b"\r\n\r\n" not in pending:
                more = tls.recv(65536)
                if not more:
                    return
                self.bytes_seen += more
                pending += more
            head, _, pending = pending.partition(b"\r\n\r\n")
            first, *lines = head.decode("latin-1").split("\r\n")
            headers = {key.lower(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
            length = int(headers.get("content-length", "0"))
            body, pending = pending[:length], pending[length:]
            yield Seen(first.split()[0], first.split()[1], headers, body, number)
