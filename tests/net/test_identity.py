"""Keys, their public lines, and certificates that follow from them."""

import os
import pickle
import stat

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hypothesis import given
from hypothesis import strategies as st

from decor.errors import InputError
from decor.net.identity import Identity, certificate, line_of, public_of


def test_a_key_is_kept_for_its_owner_alone_and_never_overwritten(tmp_path):
    path = tmp_path / "bonn.key"
    identity = Identity.new()
    identity.save(path)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert Identity.load(path).public == identity.public
    with pytest.raises(InputError, match="exists; a key is never overwritten"):
        Identity.new().save(path)
    assert Identity.load(path).public == identity.public


def test_a_key_that_others_can_read_is_refused(tmp_path):
    path = tmp_path / "key"
    Identity.new().save(path)
    path.chmod(0o640)
    with pytest.raises(InputError, match="can be read by others; run chmod 600"):
        Identity.load(path)


@pytest.mark.parametrize(
    "held", [b"", b"nonsense", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"]
)
def test_what_is_no_key_is_refused(tmp_path, held):
    path = tmp_path / "key"
    path.write_bytes(held)
    path.chmod(0o600)
    with pytest.raises(InputError, match="is not a key; make one with decor keygen"):
        Identity.load(path)
    with pytest.raises(InputError, match="cannot be read.*decor keygen"):
        Identity.load(tmp_path / "absent")


def test_a_key_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "key"
    path.write_bytes(
        generate_private_key(SECP256R1()).private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
        )
    )
    path.chmod(0o600)
    with pytest.raises(InputError, match="another kind"):
        Identity.load(path)


def test_the_public_line_says_the_key_and_the_private_one_is_never_shown():
    identity = Identity.new()
    assert (
        public_of(identity.line) == identity.public
        and repr(identity) == f"Identity({identity.line})"
    )
    private = identity.key.private_bytes_raw()
    assert private.hex() not in repr(identity) and private.hex() not in str(vars(identity))
    with pytest.raises(TypeError):
        pickle.dumps(identity)


@given(
    st.text(max_size=80)
    | st.sampled_from(
        [line_of(bytes(32))[:-1], line_of(bytes(32)) + "=", " " + line_of(bytes(32)), None]
    )
)
def test_what_is_no_line_is_refused(text):
    with pytest.raises(InputError, match="is not a public key"):
        public_of(text)


def test_everybody_makes_the_same_certificate_and_another_for_each_user():
    one, two = Identity.new().public, Identity.new().public
    made = [certificate(one), certificate(two)]
    assert made == [certificate(one), certificate(two)] and made[0] != made[1]
    held = x509.load_der_x509_certificate(made[0])
    assert held.public_key().public_bytes_raw() == one
    assert held.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
