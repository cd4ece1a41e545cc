"""Who a user is: an Ed25519 key, its one-line public form, and the certificate that everybody can
make of it.

There is no certificate authority. A user's certificate is a function of its public key: whoever has
the key makes the same bytes, and trusts exactly those. What TLS then proves is that the other side
holds the private key. The key that signs the certificates is public, and means nothing: no
certificate is trusted for its signature. Nor does a certificate say in which federation: two whose
files differ still reach each other, and say to each other in which field.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID

from decor.errors import InputError

_LINE = re.compile(r"decor-ed25519 ([A-Za-z0-9+/]{43}=)")
_FROM, _TO = datetime.datetime(2020, 1, 1), datetime.datetime(2120, 1, 1)


@dataclass(frozen=True)
class Identity:
    """A user's private key. It is shown nowhere; `line` is what others are given."""

    key: Ed25519PrivateKey

    def __repr__(self) -> str:
        return f"Identity({self.line})"

    def __reduce__(self) -> str:
        raise TypeError("a private key is only written by Identity.save")

    @staticmethod
    def new() -> Identity:
        return Identity(Ed25519PrivateKey.generate())

    @property
    def public(self) -> bytes:
        return self.key.public_key().public_bytes_raw()

    @property
    def line(self) -> str:
        return line_of(self.public)

    def save(self, path: str | Path) -> None:
        """To a new file that nobody else can read, never over an old one."""
        text = self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        try:
            with os.fdopen(
                os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb"
            ) as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        except FileExistsError:
            raise InputError(
                f"{str(path)!r} exists; a key is never overwritten, so name another file"
            ) from None
        except OSError as problem:
            raise InputError(
                f"the key {str(path)!r} cannot be written: {problem.strerror}"
            ) from None

    @staticmethod
    def load(path: str | Path) -> Identity:
        try:
            mode, held = os.stat(path).st_mode, Path(path).read_bytes()
        except OSError as problem:
            raise InputError(
                f"the key {str(path)!r} cannot be read: {problem.strerror}; make one "
                "with decor keygen"
            ) from None
        if mode & 0o077:
            raise InputError(f"the key {str(path)!r} can be read by others; say chmod 600 {path}")
        try:
            key = load_pem_private_key(held, password=None)
        except (ValueError, TypeError):
            raise InputError(f"{str(path)!r} is no key; make one with decor keygen") from None
        if not isinstance(key, Ed25519PrivateKey):
            raise InputError(f"{str(path)!r} is a key of another kind; make one with decor keygen")
        return Identity(key)


def line_of(public: bytes) -> str:
    """A public key as people copy it."""
    return f"decor-ed25519 {base64.b64encode(public).decode()}"


def public_of(line: str) -> bytes:
    """The key of a line; refuses what is not exactly one."""
    found = _LINE.fullmatch(line) if isinstance(line, str) else None
    if found is None:
        raise InputError(
            f"{line!r} is no public key; it is the line that decor keygen prints, "
            "decor-ed25519 and 44 letters"
        )
    return base64.b64decode(found[1])


def certificate(public: bytes) -> bytes:
    """A user's certificate (DER): the same bytes whoever makes it."""
    signer = Ed25519PrivateKey.from_private_bytes(
        hashlib.sha256(b"decor certificates, trusted for nothing 1").digest()
    )
    name = x509.Name(
        [x509.NameAttribute(NameOID.COMMON_NAME, hashlib.sha256(public).hexdigest()[:32])]
    )
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "decor")])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(Ed25519PublicKey.from_public_bytes(public))
        .serial_number(int.from_bytes(hashlib.sha256(b"serial" + public).digest()[:16], "big"))
        .not_valid_before(_FROM)
        .not_valid_after(_TO)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    )
    return builder.sign(signer, algorithm=None).public_bytes(Encoding.DER)
