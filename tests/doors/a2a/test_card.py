"""The card of a door: what it says, that its signature holds, and that a changed one does not."""

import json
from pathlib import Path

import jwt
import pytest
from a2a.types.a2a_pb2 import AgentCard
from a2a.utils.signing import InvalidSignaturesError, NoSignatureError, create_signature_verifier
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from google.protobuf.json_format import ParseDict
from tests.doors.a2a.conftest import Behind, desk

from apc_a2a.server import card_of, read_card_key
from apc_contracts.errors import InputUnusable

Key = ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


def pem(folder: Path, key: Key) -> Path:
    file = folder / "card.pem"
    file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return file


@pytest.mark.parametrize("key", [ed25519.Ed25519PrivateKey.generate(), ec.generate_private_key(ec.SECP256R1())])
async def test_the_card_is_signed_and_its_key_is_at_the_place_it_names(
    behind: Behind, tmp_path: Path, key: ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey
) -> None:
    async with behind(desk(), a2a_card_key_file=pem(tmp_path, key)) as running:
        nobody = running.clients["nobody"].http
        answer = await nobody.get("/.well-known/agent-card.json", headers={"Authorization": ""})
        keys = (await nobody.get("/.well-known/jwks.json")).json()["keys"]
        cached = await nobody.get("/.well-known/agent-card.json", headers={"If-None-Match": answer.headers["etag"]})
    assert answer.headers["last-modified"] and cached.status_code == 304
    card, jwks = ParseDict(answer.json(), AgentCard()), jwt.PyJWKSet.from_dict({"keys": keys})

    def find(kid: str | None, jku: str | None) -> jwt.PyJWK:
        assert jku is not None and jku.endswith("/.well-known/jwks.json")
        return jwks[str(kid)]

    verify = create_signature_verifier(find, ["EdDSA", "ES256"])
    verify(card)
    forged = AgentCard()
    forged.CopyFrom(card)
    forged.supported_interfaces[0].url = "https://elsewhere.example/a2a"
    with pytest.raises(InvalidSignaturesError):
        verify(forged)
    forged.ClearField("signatures")
    with pytest.raises(NoSignatureError):
        verify(forged)


def test_the_card_names_the_skill_the_schema_and_how_to_log_in() -> None:
    card = card_of(desk(), "https://agents.example.com", pushes=True)
    assert [one.url for one in card.supported_interfaces] == [
        "https://agents.example.com/a2a/jsonrpc",
        "https://agents.example.com/a2a/rest",
    ]
    typed = next(one for one in card.capabilities.extensions if one.params)
    assert "amount" in json.dumps(list(typed.params["input"]["properties"]))
    assert card.skills[0].id == "clerk" and card.security_schemes["bearer"].http_auth_security_scheme.scheme == "bearer"


def test_a_key_that_signs_no_card(tmp_path: Path) -> None:
    with pytest.raises(InputUnusable, match="must be one of Ed25519 or P-256"):
        read_card_key(pem(tmp_path, rsa.generate_private_key(65537, 2048)))
    with pytest.raises(InputUnusable, match="cannot be read"):
        read_card_key(tmp_path / "none.pem")
