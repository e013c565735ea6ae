"""What packets say: a line in lists, fields by the schema, and words where nobody can read them."""

from typing import Any
from uuid import uuid4

from pydantic import BaseModel, Field
from tests.orchestrator.judging.test_task_sessions import open_task, work
from tests.support.traffic.packets import SESSION
from tests.web.conftest import WebBench

from apc_bus import headers
from apc_bus.port import Message, Publication
from apc_bus.topology import RECEIPTS
from apc_contracts import MessagePayload, Packet
from apc_contracts.identity.registry_change import SchemaAdded, encode_registry_change
from apc_contracts.schemas import register_schema
from apc_contracts.vocabulary import PROTOCOL_1_1


class Refund(BaseModel):
    reason: str
    order: str = Field(json_schema_extra={"x-title": True})
    euros: float


async def told_of(bench: WebBench, *contents: dict[str, Any]) -> list[Packet]:
    """Log a task whose opener says contents of `refund/1`, which is registered."""
    schema = register_schema("refund/1", Refund.model_json_schema(mode="serialization"))
    change = SchemaAdded(change_id=uuid4(), schema_id="refund/1", document=schema.document)
    sent = Message(
        encode_registry_change(change), str(change.change_id), type=headers.TYPE_REGISTRY, user_id="operator"
    )
    opening = open_task()
    said = [
        work(
            "librarian",
            MessagePayload(schema_id="refund/1", content=one),
            ("red-1",),
            parent=opening,
            version=PROTOCOL_1_1,
        )
        for one in contents
    ]
    async with bench.house.persister(), bench.house.gate():
        await bench.house.open(opening)
        await bench.house.client("operator").publish(Publication(RECEIPTS, "0", sent))
        await bench.house.quiet()
        for one in said:
            await bench.house.publish(one)
        await bench.house.quiet()
    return said


async def test_a_list_says_each_content_in_the_order_of_its_schema(bench: WebBench) -> None:
    (sent,) = await told_of(bench, {"reason": "late", "order": "A-2", "euros": 80})
    line = "refund/1: order A-2, reason late, euros 80"

    listed = {one["packet_id"]: one for one in (await bench.get("/packets", session_id=SESSION))["items"]}
    packet = await bench.get(f"/packets/{sent.packet_id}")
    tree = await bench.get(f"/packets/{packet['causes'][0]['packet_id']}/tree")
    lines = await bench.get(f"/sessions/{SESSION}/lines", seq=[packet["seq"], packet["seq"], 999_999])

    assert listed[str(sent.packet_id)]["line"] == packet["line"] == line and packet["body"] == "readable"
    assert lines["items"] == [{"seq": packet["seq"], "line": line, "body": "readable"}]
    assert line in [one["line"] for one in tree["items"]]
    assert packet["causes"][0]["line"] == "START: contract task, members red-1, blue-1, sentinel"


async def test_a_schema_has_the_order_of_its_fields(bench: WebBench) -> None:
    await told_of(bench, {"reason": "late", "order": "A-2", "euros": 80})
    found = await bench.get("/schemas/refund/1")
    assert found["document"]["x-order"] == ["reason", "order", "euros"]
    missing = await bench.get("/schemas/refund/2", status=404)
    assert missing["detail"].startswith("the log holds no schema refund/2")


async def test_a_natural_text_keeps_its_lines_on_the_packet(told: WebBench) -> None:
    ideas = [one for one in (await told.get("/packets", session_id=SESSION))["items"] if one["packet_type"] == "IDEA"]
    packet = await told.get(f"/packets/{ideas[0]['packet_id']}")
    assert packet["said"] == packet["document"]["payload"]["intent"] and packet["line"] == packet["said"]
