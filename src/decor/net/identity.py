"""A user's identity: an Ed25519 key, its public form of one line, and a certificate made from it.

There is no certificate authority. A user's certificate is a function of its public key: anyone who
has the public key makes the same bytes, and trusts exactly those. TLS then proves that the other
side holds the private key. The key that signs the certificates is public and proves nothing: no
certificate is trusted for its signature. Nor does a certificate name a federation: two users whose
files differ can still connect, and tell each other in which field.
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

from decor.errors import InputError, write_errors

# 32 bytes in base64 are 43 characters and one "="
_LINE = re.compile(r"decor-ed25519 ([A-Za-z0-9+/]{43}=)")
# fixed dates: a certificate is the same bytes whenever it is made
_FROM, _TO = datetime.datetime(2020, 1, 1), datetime.datetime(2120, 1, 1)


@dataclass(frozen=True)
class Identity:
    """A user's private key. It is never printed; `line` is the public key to give to others."""

    key: Ed25519PrivateKey

    def __repr__(self) -> str:
        return f"Identity({self.line})"

    # pickling would write the key to wherever the caller's objects go
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
        """Writes a new file that only its owner can read; never overwrites one."""
        text = self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        exists = "a key is never overwritten, so name another file"
        with write_errors(path, before="the key ", exists=exists):
            # the file never exists with wider permissions, not even for a moment
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())

    @staticmethod
    def load(path: str | Path) -> Identity:
        hint = "make one with decor keygen"
        try:
            mode, text = os.stat(path).st_mode, Path(path).read_bytes()
        except OSError as problem:
            raise InputError(
                f"the key {str(path)!r} cannot be read: {problem.strerror}; {hint}"
            ) from None
        # as ssh does: a key that others could read may have been copied
        if mode & 0o077:
            raise InputError(f"the key {str(path)!r} can be read by others; run chmod 600 {path}")
        try:
            key = load_pem_private_key(text, password=None)
        except (ValueError, TypeError):
            raise InputError(f"{str(path)!r} is not a key; {hint}") from None
        if not isinstance(key, Ed25519PrivateKey):
            raise InputError(f"{str(path)!r} is a key of another kind; {hint}")
        return Identity(key)


def line_of(public: bytes) -> str:
    """A public key as one line of text."""
    return f"decor-ed25519 {base64.b64encode(public).decode()}"


def public_of(line: str) -> bytes:
    """The public key of a line; refuses any other text."""
    match = _LINE.fullmatch(line) if isinstance(line, str) else None
    if match is None:
        raise InputError(
            f"{line!r} is not a public key; give the line that decor keygen prints: "
            "decor-ed25519 and 44 characters"
        )
    return base64.b64decode(match[1])


def certificate(public: bytes) -> bytes:
    """A user's certificate (DER): the same bytes wherever it is made."""
    # Ed25519 signatures are deterministic, so every field and the signature follow from `public`
    # X.509 needs a signature; this key is public
    signer = Ed25519PrivateKey.from_private_bytes(
        hashlib.sha256(b"decor certificates, trusted for nothing 1").digest()
    )
    subject, issuer = (
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        for name in (hashlib.sha256(public).hexdigest()[:32], "decor")
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(Ed25519PublicKey.from_public_bytes(public))
        .serial_number(int.from_bytes(hashlib.sha256(b"serial" + public).digest()[:16], "big"))
        .not_valid_before(_FROM)
        .not_valid_after(_TO)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    )
    return builder.sign(signer, algorithm=None).public_bytes(Encoding.DER)
