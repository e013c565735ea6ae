"""An operator's change of the registry, on its way to the gate."""

import json
from typing import Any
from uuid import UUID

import pytest

from apc_contracts import (
    AgentAdded,
    AgentRevoked,
    PacketRefused,
    PacketType,
    Registration,
    Right,
    encode_registry_change,
    parse_registry_change,
)
from apc_contracts.identity.registry_change import parse_logged_change
from apc_contracts.identity.signing import encode_public_key, new_private_key

CHANGE_ID = UUID("0190a5f2-1111-7222-8333-444455556666")
PUBLIC_KEY = encode_public_key(new_private_key())
ADDED = AgentAdded(
    change_id=CHANGE_ID,
    agent_id="sentinel-1",
    broker_user="agent.sentinel-1",
    role="sentinel",
    swarm_id="watch",
    rights=(Right.VETO, Right.VALIDATE),
    handles=(PacketType.IDEA,),
    public_keys={"k1": PUBLIC_KEY},
)


def test_round_trip() -> None:
    revoked = AgentRevoked(change_id=CHANGE_ID, agent_id="sentinel-1")
    assert parse_registry_change(encode_registry_change(ADDED)) == ADDED
    assert parse_registry_change(encode_registry_change(revoked)) == revoked


def test_every_shard_of_a_process_reads_a_change_once_unless_it_is_long() -> None:
    body = encode_registry_change(ADDED)
    assert parse_registry_change(bytes(bytearray(body))) is parse_registry_change(body)
    assert type(parse_logged_change(body)) is AgentAdded
    long = encode_registry_change(ADDED.model_copy(update={"public_keys": {f"k{n}": PUBLIC_KEY for n in range(99)}}))
    assert len(long) > 4_096 and parse_registry_change(long) is not parse_registry_change(long)


def test_the_host_of_an_agent() -> None:
    hosted = ADDED.model_copy(update={"host": "h0"})
    assert parse_registry_change(encode_registry_change(hosted)).registration().host == "h0"
    assert ADDED.registration().host is None and b"host" not in encode_registry_change(ADDED)


def test_only_agents_of_a_host_share_one() -> None:
    document = json.loads(encode_registry_change(ADDED)) | {"allow_shared": True}
    with pytest.raises(PacketRefused, match="allow_shared"):
        parse_registry_change(json.dumps(document).encode())
    hosted = parse_registry_change(json.dumps(document | {"host": "h0"}).encode())
    assert hosted.registration().allow_shared and not ADDED.registration().allow_shared


def test_a_change_of_release_0_1_0_reads_as_before() -> None:
    document = (
        b'{"action":"add","agent_id":"a-1","broker_user":"agent.a-1","change_id":"01890a5d-ac96-774b-bcce-b302099a8057",'
        b'"handles":["IDEA"],"public_keys":{},"rights":["veto"],"role":"r","swarm_id":"s"}'
    )
    change = parse_registry_change(document)
    expected = Registration(
        "a-1", "agent.a-1", "r", "s", rights=frozenset({Right.VETO}), handles=frozenset({PacketType.IDEA})
    )
    assert change.registration() == expected and expected.host is None
    assert encode_registry_change(change) == document, "and is written as before"


@pytest.mark.parametrize("host", ["", "H0", "a.b", "a*", "-a", "h\n", "h" * 33])
def test_a_host_is_one_word_of_a_routing_key(host: str) -> None:
    document = json.loads(encode_registry_change(ADDED)) | {"host": host}
    with pytest.raises(PacketRefused, match="host"):
        parse_registry_change(json.dumps(document).encode())


def test_the_registration_it_makes() -> None:
    assert ADDED.registration() == Registration(
        agent_id="sentinel-1",
        broker_user="agent.sentinel-1",
        role="sentinel",
        swarm_id="watch",
        rights=frozenset({Right.VETO, Right.VALIDATE}),
        handles=frozenset({PacketType.IDEA}),
        public_keys={"k1": PUBLIC_KEY},
    )


@pytest.mark.parametrize(
    ("change", "path", "message"),
    [
        ({"action": "promote"}, "action", "use one of 'add', 'revoke'"),
        ({"agent_id": "_all"}, "agent_id", "reserved"),
        ({"agent_id": "orchestrator"}, "agent_id", "reserved"),
        ({"rights": ["rule"]}, "rights[0]", "'operate'"),
        ({"handles": ["GOSSIP"]}, "handles[0]", "'TASK_IR'"),
        ({"public_keys": {"k1": "AAAA"}}, "public_keys.k1", "32 bytes in base64"),
        ({"public_keys": {"": PUBLIC_KEY}}, "public_keys.", "1 to 64"),
        ({"swarm_id": "a/b"}, "swarm_id", "1 to 64"),
        ({"is_admin": True}, "is_admin", "unknown field"),
    ],
)
def test_refused_at_its_place(change: dict[str, Any], path: str, message: str) -> None:
    document = json.loads(encode_registry_change(ADDED)) | change
    with pytest.raises(PacketRefused) as refused:
        parse_registry_change(json.dumps(document).encode())
    assert (refused.value.code, refused.value.path) == ("SCHEMA_INVALID", path)
    assert message in refused.value.message
