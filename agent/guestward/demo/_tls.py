"""A certificate authority like the one PVE makes for itself (facts I)."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

PrivateKey = ec.EllipticCurvePrivateKey


class Authority:
    """A root CA and the leaf that it signed; elliptic keys (PVE's are RSA) because they are made in an instant."""

    def __init__(self, node: str, key_usage: bool) -> None:
        """Make the CA and a first leaf; `key_usage=False` leaves out what a CA of PVE < 9.1.2 lacks."""
        self._node = node
        self._key_usage = key_usage
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._new_ca()

    def _new_ca(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name(
            [
                x509.NameAttribute(NameOID.COMMON_NAME, "Proxmox Virtual Environment"),
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, "PVE Cluster Manager CA"),
            ]
        )
        builder = _certificate(self._name, self._name, self._key, self._key, 3650)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        if self._key_usage:
            builder = builder.add_extension(_usage(sign=False, certificates=True), critical=True)
        self._ca = builder.sign(self._key, hashes.SHA256())

    def renew(self, directory: Path, new_ca: bool = False) -> None:
        """Sign a new leaf and serve it to new connections."""
        if new_ca:
            self._new_ca()
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self._node)])
        builder = _certificate(subject, self._name, key, self._key, 730)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        names = [x509.IPAddress(ipaddress.ip_address(ip)) for ip in ("127.0.0.1", "::1")]
        builder = builder.add_extension(
            x509.SubjectAlternativeName([*names, x509.DNSName("localhost"), x509.DNSName(self._node)]), critical=False
        )
        self._leaf = builder.sign(self._key, hashes.SHA256())
        self._load(directory, key)

    def _load(self, directory: Path, key: PrivateKey) -> None:
        chain = directory / "leaf.pem"
        private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        chain.touch(0o600)
        chain.write_bytes(private + self.leaf_pem.encode())
        self.context.load_cert_chain(chain)
        chain.unlink()

    @property
    def ca_pem(self) -> str:
        """The CA's certificate."""
        return self._ca.public_bytes(serialization.Encoding.PEM).decode()

    @property
    def leaf_pem(self) -> str:
        """The served certificate."""
        return self._leaf.public_bytes(serialization.Encoding.PEM).decode()

    @property
    def fingerprint(self) -> str:
        """Sha256 of the served certificate, the way PVE prints it."""
        return self._leaf.fingerprint(hashes.SHA256()).hex(":").upper()


def _certificate(subject: x509.Name, issuer: x509.Name, key: PrivateKey, issuer_key: PrivateKey, days: int) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )


def _usage(sign: bool, certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=certificates,
        crl_sign=certificates,
        encipher_only=False,
        decipher_only=False,
    )
