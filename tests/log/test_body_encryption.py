"""Sealed bodies: what goes in comes out under the same key, and nothing else does."""

import os
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apc_bus.settings import EncryptionSettings
from apc_log.body_encryption import MARK, MasterKey, SealedContent, is_sealed, key_id_of, subject_key
from apc_log.errors import BodyUnreadable

SECRET = bytes(range(32))
KEY = subject_key(UUID(int=7), SECRET)
contents = st.builds(
    SealedContent,
    body=st.binary(max_size=300),
    packet_hash=st.binary(min_size=32, max_size=32),
    payload_hash=st.binary(min_size=32, max_size=32),
    signature=st.none() | st.text(max_size=20),
    refusal=st.none() | st.binary(max_size=50),
)


@given(contents)
def test_what_is_sealed_comes_out_again(content: SealedContent) -> None:
    sealed = KEY.seal_packet(content)
    assert is_sealed(sealed) and not is_sealed(content.body.lstrip(b"\0"))
    assert key_id_of(sealed) == KEY.key_id
    assert KEY.unseal_packet(sealed) == content
    assert KEY.seal_packet(content) != sealed, "a fresh nonce each time"


@given(contents, st.data())
def test_one_altered_byte_is_noticed(content: SealedContent, data: st.DataObject) -> None:
    sealed = bytearray(KEY.seal_packet(content))
    place = data.draw(st.integers(0, len(sealed) - 1))
    sealed[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(BodyUnreadable):
        KEY.unseal_packet(bytes(sealed))


@given(st.binary(max_size=60))
def test_any_bytes_are_refused_clearly(found: bytes) -> None:
    with pytest.raises(BodyUnreadable):
        KEY.unseal_packet(MARK + found)


def test_another_key_opens_nothing_and_digests_otherwise() -> None:
    other = subject_key(UUID(int=8), SECRET)
    with pytest.raises(BodyUnreadable, match="altered"):
        other.unseal(KEY.seal(b"text"))
    assert other.digest(SECRET) != KEY.digest(SECRET) != SECRET
    assert KEY.digest(SECRET) == subject_key(UUID(int=7), SECRET).digest(SECRET)


def test_a_wrapped_secret_needs_its_master_key() -> None:
    master = MasterKey(os.urandom(32))
    key_id, wrapped = master.new_secret()
    assert master.unwrap(key_id, wrapped).unseal(master.unwrap(key_id, wrapped).seal(b"text")) == b"text"
    with pytest.raises(BodyUnreadable, match="APC_SUBJECT_MASTER_KEY"):
        MasterKey(os.urandom(32)).unwrap(key_id, wrapped)
    with pytest.raises(BodyUnreadable):
        master.unwrap(uuid4(), wrapped)


@pytest.mark.parametrize("given", [{}, {"subject_master_key": "short"}, {"subject_master_key": "bm90IDMyIGJ5dGVz"}])
def test_settings_name_what_is_missing(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="openssl rand -base64 32"):
        EncryptionSettings(encrypt_bodies=True, **given)
