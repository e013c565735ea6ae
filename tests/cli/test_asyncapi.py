"""`apc asyncapi`: a valid AsyncAPI 3.0 document that says what the topology and the models say."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from jsonschema import Draft7Validator
from tests.support.apc_command import ApcCommand
from tests.support.traffic import make_idea, make_packet, make_start

from apc_bus.topology import RETRY, AgentQueues, agent_of_queue, build_topology
from apc_cli.commands.asyncapi import asyncapi_document
from apc_contracts import PacketType, seal

TOPOLOGY = build_topology(
    2, [AgentQueues("red-1", "red", frozenset(PacketType)), AgentQueues("blue-1", "blue", host="h0")]
)


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """Of two shards, an agent with its own queues, and one of a host."""
    return asyncapi_document(TOPOLOGY, ["amqps://user:secret@broker:5671/apc"])


def test_the_official_schema_takes_it(document: dict[str, Any]) -> None:
    schema = json.loads((Path(__file__).parent / "asyncapi_specification/3.0.0.json").read_text())
    assert [error.json_path for error in Draft7Validator(schema).iter_errors(document)] == []
    operations = document["operations"] | {"judge": {"action": "publish", "channel": {"$ref": "#/channels/gate"}}}
    assert not Draft7Validator(schema).is_valid(document | {"operations": operations}), "version 2 has these actions"


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    references = list(_references(document))
    assert len(references) > 200
    for reference in references:
        place: Any = document
        for word in reference.removeprefix("#/").split("/"):
            place = place[word]


def test_every_exchange_and_queue_is_a_channel(document: dict[str, Any]) -> None:
    bindings = [channel["bindings"]["amqp"] for channel in document["channels"].values()]
    exchanges = {(one["exchange"]["name"], one["exchange"]["type"]) for one in bindings if "exchange" in one}
    queues = {one["queue"]["name"] for one in bindings if "queue" in one}
    bound = {binding.exchange for binding in TOPOLOGY.bindings}
    assert exchanges == {
        (one.name.replace("red-1", "{agent_id}"), one.kind.value) for one in TOPOLOGY.exchanges if one.name in bound
    }
    assert queues == {_template(queue.name) for queue in TOPOLOGY.queues}


def test_all_types_are_sent_and_delivered(document: dict[str, Any]) -> None:
    channels = document["channels"]
    assert set(channels["ingress"]["messages"]) == set(PacketType)
    assert set(channels["inboxUrgent"]["messages"]) == {f"{kind}.delivered" for kind in PacketType}
    assert channels["ingress"]["parameters"]["slot"]["enum"] == [str(slot) for slot in range(256)]
    assert channels["gate"]["parameters"]["shard"]["enum"] == ["0", "1"]
    assert channels["inboxNormal"]["parameters"]["agent_id"]["enum"] == ["red-1"]


def test_its_schemas_judge_packets_as_the_exported_ones_do(document: dict[str, Any]) -> None:
    for packet in (make_start(), make_packet("red-1", make_idea(), ("sentinel",))):
        payload = document["components"]["messages"][packet.packet_type]["payload"]
        validator = Draft7Validator({"components": document["components"], "allOf": [payload]})
        sent = orjson.loads(seal(packet).body)
        assert list(validator.iter_errors(sent)) == []
        for broken in (sent | {"surprise": 1}, sent | {"packet_type": "EVAL"}, sent | {"payload": {}}):
            assert not validator.is_valid(broken)


def test_the_command_shows_no_password(apc: ApcCommand, document: dict[str, Any]) -> None:
    written = apc("asyncapi", "--out", "bus.json", given={"APC_AMQP_URL": "amqp://user:secret@broker:5671/apc"})
    assert written.returncode == 0, written.stderr
    text = (apc.folder / "bus.json").read_text()
    assert "secret" not in text
    assert json.loads(text)["servers"]["node1"]["host"] == "broker:5671"
    assert json.loads(text)["components"] == document["components"]


def _references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"]
        for value in part.values():
            yield from _references(value)
    elif isinstance(part, list):
        for value in part:
            yield from _references(value)


def _template(queue: str) -> str:
    agent = agent_of_queue(queue)
    if agent is not None:
        return queue.replace(agent, "{agent_id}")
    if queue.startswith("apc.host."):
        return queue.replace(".h0.", ".{host}.")
    stem, _, last = queue.rpartition(".")
    if stem == RETRY:
        return f"{stem}.{{delay_ms}}ms"
    return f"{stem}.{{shard}}" if last.isdigit() else queue
