"""`apc packet validate`."""

import json
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from tests.support.apc_command import ApcCommand

Json = dict[str, Any]


def idea() -> Json:
    """Return a packet that every rule without a session accepts."""
    packet_id = str(uuid4())
    return {
        "protocol_version": "apc/1.0",
        "packet_id": packet_id,
        "packet_type": "IDEA",
        "channel": "INTER_AGENT",
        "run_phase": "DISCOVERY",
        "created_at": datetime.now(UTC).isoformat(),
        "sender": {"agent_id": "planner-1", "role": "planner", "swarm_id": "alpha"},
        "recipients": [{"agent_id": "sentinel-1"}],
        "trace": {
            "session_id": "s-1",
            "run_id": "r-1",
            "task_id": "t-1",
            "root_packet_id": packet_id,
            "generation": 3,
            "step": 1,
        },
        "routing": {"delivery_mode": "DIRECT", "priority": 4, "ttl_ms": 60000, "requires_ack": False},
        "confidence": 0.8,
        "symbolic_keys": ["ridge"],
        "payload": {
            "method_id": "ridge-1",
            "intent": "a regularised baseline",
            "assumptions": [],
            "required_capabilities": [],
            "expected_impact": {"quality_gain": 0.1, "cost_change": 0.0, "risk_change": 0.0},
            "failure_modes": [],
        },
    }


def test_a_good_packet_is_accepted(apc: ApcCommand) -> None:
    (apc.folder / "packet.json").write_text(json.dumps(idea()))

    validated = apc("packet", "validate", "packet.json")

    assert (validated.returncode, validated.stdout, validated.stderr) == (0, "accepted\n", "")


def test_the_packet_may_come_from_a_pipe(apc: ApcCommand) -> None:
    assert apc("packet", "validate", "-", stdin=json.dumps(idea())).stdout == "accepted\n"


def test_the_example_of_the_protocol_page_is_accepted(apc: ApcCommand) -> None:
    from pathlib import Path

    page = (Path(__file__).parents[4] / "docs/reference/protocol.md").read_text()
    packet = page.split("```json\n")[1].split("```")[0]

    assert apc("packet", "validate", "-", stdin=packet).stdout == "accepted\n"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"run_phase": "RESEARCH", "packet_type": "ARTIFACT"}, "refused SCHEMA_INVALID at payload"),
        ({"run_phase": "VALIDATION"}, "refused PHASE_FORBIDS_TYPE at "),
        ({"protocol_version": "apc/2.0"}, "refused SCHEMA_INVALID at protocol_version: "),
        ({"surprise": 1}, "refused SCHEMA_INVALID at surprise: "),
        ({"confidence": 2}, "refused SCHEMA_INVALID at confidence: "),
    ],
)
def test_a_refusal_is_code_path_and_sentence(apc: ApcCommand, change: Json, says: str) -> None:
    validated = apc("packet", "validate", "-", stdin=json.dumps(idea() | change))

    assert validated.returncode == 2
    assert validated.stdout.startswith(says)
    assert len(validated.stdout.splitlines()) == 1
    assert validated.stderr == ""


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("", "MALFORMED"),
        ("not json", "MALFORMED"),
        ('{"a": 1, "a": 2}', "MALFORMED"),
        ('{"a": NaN}', "MALFORMED"),
        ("[" * 40 + "]" * 40, "TOO_DEEP"),
        ("[" + "1," * 200_000 + "1]", "TOO_LARGE"),
        ("[]", "SCHEMA_INVALID"),
    ],
)
def test_bytes_that_are_no_packet_are_refused(apc: ApcCommand, body: str, code: str) -> None:
    validated = apc("packet", "validate", "-", stdin=body)

    assert validated.returncode == 2
    assert validated.stdout.startswith(f"refused {code} at ")


def test_a_missing_file_is_one_line(apc: ApcCommand) -> None:
    refused = apc("packet", "validate", "nothing.json")

    assert refused.returncode == 2
    assert refused.stderr == "apc: cannot read nothing.json: No such file or directory\n"
