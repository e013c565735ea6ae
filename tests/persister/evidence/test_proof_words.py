"""What the verifier says of a proven packet: only what stands in the proven bytes, in bounded, harmless lines."""

import base64
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from apc_log.body_encryption import MARK
from apc_log.offline_verifier import COLUMNS, check_file, leaf_hash, main
from apc_persister.evidence.checkpoint import Signer

SIGNER = Signer(Ed25519PrivateKey.generate(), "apc-log")
VALUES = {
    "packet_id": "01990000-0000-7000-8000-000000000001",
    "packet_type": "DECISION",
    "sender_agent_id": "judge",
    "recipients": ["writer", "reviewer"],
    "session_id": "s-1",
    "run_id": "r-1",
    "judged_at": "2026-11-20T10:00:00.000000Z",
    "verdict": "accepted",
}


def test_it_says_who_sent_what_when_and_the_verdict() -> None:
    assert told(b'{"payload":{"recommendation":"pay"}}')[1:5] == [
        "DECISION 01990000-0000-7000-8000-000000000001 by judge to writer, reviewer",
        "session s-1, run r-1",
        "verdict at 2026-11-20T10:00:00.000000Z: accepted",
        'payload: {"recommendation":"pay"}',
    ]


def test_a_refusal_has_its_code_and_a_held_packet_no_final_verdict() -> None:
    assert told(b"{}", verdict="refused", refusal_code="TTL_EXPIRED")[3].endswith(": refused (TTL_EXPIRED)")
    assert told(b"{}", verdict="held")[3].endswith(": held; its final verdict is a later entry")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (MARK + b"secret", "payload: encrypted, readable with the subject's key only"),
        (b"no packet", "payload: not readable: the body is no packet"),
        (b"[1]", "payload: not readable: the body is no packet"),
        (b"{}", "payload: not readable: the body is no packet"),
        (b'{"payload":1,"payload":2}', "payload: not readable: the body is no packet"),
        (b"[" * 100_000, "payload: not readable: the body is no packet"),
        (b"\xff\xfe\x00", "payload: not readable: the body is no packet"),
    ],
)
def test_a_body_that_cannot_be_read(body: bytes, said: str) -> None:
    assert told(body)[4] == said


def test_a_long_payload_is_cut() -> None:
    said = told(json.dumps({"payload": "x" * 5_000}).encode())[4]
    assert said.endswith("… (4702 more characters)")
    assert len(said) < 350


def test_odd_columns_are_no_crash() -> None:
    assert told(b"{}", recipients=7, sender_agent_id=None, session_id=["s"] * 1_000)[1].endswith(" by None to ")


def test_nothing_in_it_acts_on_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = json.dumps({"payload": "a\x1b[2J\x9b\u202e\nb\ud800"}).encode()
    file = tmp_path / "packet.proof"
    file.write_text(proof(body, sender_agent_id="j\x1b[31m\nudge"), encoding="utf-8")
    assert main([str(file), "--no-key"]) == 0
    out = capsys.readouterr().out
    assert not set("\x1b\x9b\u202e\ud800") & set(out)
    assert "by j?[31m?udge to" in out


def test_half_a_character_proves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A changed file is not proven; it is not one that cannot be read."""
    whole = json.loads(proof(b"{}"))
    file = tmp_path / "packet.proof"
    for member in ("entry", "checkpoint", "key", "body"):
        file.write_text(json.dumps(whole | {member: whole[member] + "\ud800"}), encoding="utf-8")
        assert main([str(file), "--no-key"]) == 1, member
        assert f"NOT PROVEN: {member} holds half a character" in capsys.readouterr().err
    head = {"format": "apc-log-bundle", "version": 3, "run_id": "r-1", "checkpoints": [], "contracts": ["\ud800"]}
    file.write_text(json.dumps(head), encoding="utf-8")
    assert main([str(file), "--no-key"]) == 1
    assert "NOT PROVEN: a contract in the bundle holds half a character" in capsys.readouterr().err


def told(body: bytes, **values: Any) -> list[str]:
    """Return what the check of a proof says."""
    return check_file([proof(body, **values)], [SIGNER.public_key(0)])


def proof(body: bytes, **values: Any) -> str:
    """Return the proof of a packet that is the only entry of its log."""
    row = {**VALUES, **values, "stored_hash": sha256(body).hexdigest()}
    entry = json.dumps(["packet", 1, 0, 1, *(row.get(name) for name in COLUMNS["packet", 1])])
    return json.dumps(
        {
            "format": "apc-log-proof",
            "version": 1,
            "checkpoint": SIGNER.sign(0, 1, leaf_hash(entry.encode())),
            "key": str(SIGNER.public_key(0)),
            "entry": entry,
            "path": [],
            "body": base64.b64encode(body).decode(),
        }
    )
