"""`apc packet transfer-arbitrate`: any form of file, one clear sentence for what is none, no server."""

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import yaml
from tests.support.apc_command import ApcCommand

from apc_cli.commands.packet import read_packets
from apc_cli.errors import InputUnusable

Json = dict[str, Any]


def transfer(number: int, sender_score: float = 0.9, **trace: Any) -> Json:
    """Return a TRANSFER of generation 21 that every rule without a session accepts."""
    packet_id = str(UUID(int=number, version=4))
    return {
        "protocol_version": "apc/1.0",
        "packet_id": packet_id,
        "packet_type": "TRANSFER",
        "channel": "INTER_AGENT",
        "run_phase": "CONVERGENCE",
        "created_at": "2026-02-19T07:50:00Z",
        "sender": {"agent_id": "builder-1", "role": "builder", "swarm_id": "linear"},
        "recipients": [{"agent_id": "builder-2"}],
        "trace": {
            "session_id": "s-1",
            "run_id": "r-1",
            "task_id": "t-1",
            "root_packet_id": packet_id,
            "generation": 21,
            "step": 1,
        }
        | trace,
        "routing": {"delivery_mode": "DIRECT", "priority": 4, "ttl_ms": 60000, "requires_ack": False},
        "confidence": 0.8,
        "symbolic_keys": ["ridge"],
        "lineage": {"protocol_id": "proto-1", "transfer_mode": "WINNER_TO_LOSERS"},
        "payload": {
            "protocol_id": "proto-1",
            "from_swarm": "linear",
            "to_swarm": "trees",
            "sender_score": sender_score,
            "receiver_score": 0.6,
            "transfer_policy": {"mode": "WINNER_TO_LOSERS", "top_k": 2},
        },
    }


PACKETS = [transfer(1, 0.7), transfer(2, 0.9), transfer(3, 0.8), transfer(4, generation=10)]
FORMS = {
    "list": json.dumps(PACKETS),
    "indented_list": json.dumps(PACKETS, indent=2),
    "object": json.dumps({"packets": PACKETS}),
    "indented_object": json.dumps({"packets": PACKETS}, indent=2),
    "lines": "\n".join(map(json.dumps, PACKETS)),
    "lines_with_gaps": "\r\n\r\n".join(map(json.dumps, PACKETS)) + "\n",
    "yaml_list": yaml.safe_dump(PACKETS),
    "yaml_object": yaml.safe_dump({"packets": PACKETS}),
    "yaml_with_plain_times": yaml.safe_dump(PACKETS).replace("'2026-02-19T07:50:00Z'", "2026-02-19T07:50:00Z"),
    "with_a_mark": "\ufeff" + json.dumps(PACKETS),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_holds_the_same_packets(tmp_path: Path, form: str) -> None:
    (tmp_path / "packets").write_text(FORMS[form], encoding="utf-8")

    assert [json.loads(body) for body in read_packets(tmp_path / "packets")] == PACKETS


@pytest.mark.parametrize("text", [json.dumps(PACKETS[0]), json.dumps(PACKETS[0], indent=1), yaml.safe_dump(PACKETS[0])])
def test_one_packet_is_a_file_of_one(tmp_path: Path, text: str) -> None:
    (tmp_path / "packet").write_text(text)

    assert [json.loads(body) for body in read_packets(tmp_path / "packet")] == PACKETS[:1]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is empty"),
        (b" \n ", "is empty"),
        (b"\xff\xfe", "is not UTF-8: byte 0"),
        (b'[{"a": 1}, {"b"', "cannot be read as JSON"),
        (b'{"packets": [], "packets": []}', "the key 'packets' appears twice in one object"),
        (b'{"packet": []}', "an object with packet: the packets belong under the one key `packets`"),
        (b"{}", "an object with nothing"),
        (b'{"packets": 3}', "packets is a number, not a list"),
        (b'{"packets": [], "top_k": 2}', "an object with top_k"),
        (b"packets:\n  - [", "neither JSON nor YAML"),
        (b"just some words", "holds text"),
        (b"42", "holds a number"),
        (b"[" * 100_000, "cannot be read as JSON"),
    ],
)
def test_what_is_no_file_of_packets_is_said_in_one_sentence(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "packets").write_bytes(data)

    with pytest.raises(InputUnusable, match="packets") as raised:
        read_packets(tmp_path / "packets")
    assert said in str(raised.value)


def test_selected_not_selected_and_rejected(apc: ApcCommand) -> None:
    strangers = [{**PACKETS[0], "packet_type": "IDEA"}, 7, "words", {"packet_id": "half"}, PACKETS[1]]
    (apc.folder / "packets.json").write_text(json.dumps([*PACKETS, *strangers]))

    said = apc("packet", "transfer-arbitrate", "--packets-in", "packets.json", "--top-k", "1")

    assert (said.returncode, said.stderr) == (0, "")
    result = json.loads(said.stdout)
    assert list(result) == ["input_count", "valid_transfer_count", "selected", "not_selected", "rejected"]
    assert (result["input_count"], result["valid_transfer_count"]) == (9, 3)
    (best,) = result["selected"]
    assert best == {
        "index": 1,
        "packet_id": PACKETS[1]["packet_id"],
        "selection_score": pytest.approx(0.3 + 0.25 * 0.8),
        "recommended_accept": True,
    }
    assert [row["index"] for row in result["not_selected"]] == [2, 0]
    assert [row["reason"].split(" ")[0] for row in result["rejected"]] == [
        "TRANSFER_WINDOW_CLOSED",
        *["SCHEMA_INVALID"] * 4,
        "DUPLICATE_CONFLICT",
    ]


def test_two_are_selected_unless_told_otherwise(apc: ApcCommand) -> None:
    said = apc("packet", "transfer-arbitrate", "--packets-in", "-", stdin=FORMS["lines"])
    assert len(json.loads(said.stdout)["selected"]) == 2


def test_a_file_and_a_pipe(apc: ApcCommand) -> None:
    arguments = ("packet", "transfer-arbitrate", "--packets-in", "-", "--top-k", "2", "--out", "found/result.json")
    said = apc(*arguments, stdin=FORMS["lines"])

    assert (said.returncode, said.stdout) == (0, "")
    assert said.stderr == "found/result.json: 2 of 4 selected\n"
    assert len(json.loads((apc.folder / "found/result.json").read_text())["selected"]) == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("--packets-in", "nowhere.json", "--top-k", "2"),
        ("--packets-in", "packets.json", "--top-k", "-1"),
        ("--packets-in", "packets.json", "--top-k", "two"),
        ("--top-k", "2"),
        ("--packets-in", "packets.json", "--top-k", "2", "--out", "packets.json/result"),
    ],
)
def test_a_wrong_option_is_one_line_and_exit_2(apc: ApcCommand, arguments: tuple[str, ...]) -> None:
    (apc.folder / "packets.json").write_text(FORMS["list"])

    refused = apc("packet", "transfer-arbitrate", *arguments)

    assert (refused.returncode, refused.stdout) == (2, "")
    assert len(refused.stderr.splitlines()) == 1
