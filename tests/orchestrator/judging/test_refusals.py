"""What the gate refuses, whom it tells, and what it keeps of it."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import orjson
import pytest
from tests.orchestrator.conftest import House

from apc_contracts import IdeaPayload, Packet, load_contract
from apc_contracts.identity.ids import reply_id
from apc_contracts.wire.parsing import seal
from apc_contracts.wire.refused_input import kept_of

Build = Callable[..., Packet]


async def test_a_refusal_is_a_nack_and_a_row(running: House, packet: Build, idea: IdeaPayload) -> None:
    refused = packet("red-1", idea, ("nobody",), parent=running.opening)
    await running.publish(refused)
    await running.quiet()
    (nack,) = await running.nacks("red-1")
    assert nack.payload.acked_packet_id == refused.packet_id
    assert nack.payload.reason.startswith("UNROUTABLE at recipients[0]")
    assert nack.metadata["refusal"]["code"] == "UNROUTABLE"
    assert nack.packet_id == reply_id(refused.packet_id, "orchestrator", "nack")
    row = await running.pool.fetchrow(
        "SELECT verdict, refusal_code FROM apc_log.agent_packets WHERE packet_id = $1", refused.packet_id
    )
    assert row is not None and tuple(row) == ("refused", "UNROUTABLE")
    assert await running.state_of(refused) == "REJECTED_POLICY"


async def test_a_repeat_is_answered_again_and_not_judged_twice(
    running: House, packet: Build, idea: IdeaPayload
) -> None:
    refused = packet("red-1", idea, ("nobody",), parent=running.opening)
    for _ in range(3):
        await running.publish(refused)
    await running.quiet()
    assert len(await running.nacks("red-1")) == 3
    count = await running.pool.fetchval(
        "SELECT count(*) FROM apc_log.agent_packets WHERE packet_id = $1", refused.packet_id
    )
    assert count == 1


async def test_an_accepted_repeat_is_not_delivered_again(running: House, packet: Build, idea: IdeaPayload) -> None:
    sent = packet("red-1", idea, ("sentinel",), parent=running.opening)
    for _ in range(2):
        await running.publish(sent)
        await running.quiet()
    deliveries = await running.read("sentinel")
    assert [delivery.message.headers["apc-attempt"] for delivery in deliveries] == [1]


async def test_other_content_under_an_old_id_is_a_conflict(running: House, packet: Build, idea: IdeaPayload) -> None:
    sent = packet("red-1", idea, ("sentinel",), parent=running.opening)
    await running.publish(sent)
    forged = packet("blue-1", idea, ("sentinel",), parent=running.opening, packet_id=sent.packet_id)
    await running.publish(forged)
    await running.quiet()
    (nack,) = await running.nacks("blue-1")
    assert nack.metadata["refusal"]["code"] == "DUPLICATE_CONFLICT"
    row = await running.pool.fetchrow("SELECT code, first_hash, second_hash, raw FROM apc_log.packet_conflicts")
    assert row["code"] == "DUPLICATE_CONFLICT"
    assert (row["first_hash"], row["second_hash"]) == (seal(sent).packet_hash, seal(forged).packet_hash)
    assert row["raw"] == seal(forged).body


async def test_a_rerun_with_another_answer_is_recorded_and_not_answered(
    running: House, packet: Build, idea: IdeaPayload
) -> None:
    cause = packet("blue-1", idea, ("red-1",), parent=running.opening)
    await running.publish(cause)
    await running.quiet()
    headers = {"apc-cause": str(cause.packet_id), "apc-ordinal": 0}
    same_id = reply_id(cause.packet_id, "red-1", 0)
    for method in ("first", "second"):
        answer = packet(
            "red-1",
            idea.model_copy(update={"method_id": method}),
            ("blue-1",),
            parent=cause,
            packet_id=same_id,
        )
        await running.publish(answer, headers=headers)
    await running.quiet()
    assert not await running.nacks("red-1")
    kinds = [row["kind"] for row in await running.pool.fetch("SELECT kind FROM apc_log.packet_conflicts")]
    assert kinds == ["rerun"]
    stands = await running.pool.fetchval(
        "SELECT packet -> 'payload' ->> 'method_id' FROM apc_log.packets WHERE packet_id = $1", same_id
    )
    assert stands == "first"


async def test_a_derived_id_that_cannot_be_recomputed_takes_no_id(
    running: House, packet: Build, idea: IdeaPayload
) -> None:
    cause = packet("blue-1", idea, ("red-1",), parent=running.opening)
    await running.publish(cause)
    await running.quiet()
    stolen = packet("red-1", idea, ("blue-1",), packet_id=reply_id(cause.packet_id, "blue-1", 0), parent=cause)
    await running.publish(stolen, headers={"apc-cause": str(cause.packet_id), "apc-ordinal": 0})
    await running.quiet()
    (nack,) = await running.nacks("red-1")
    assert nack.metadata["refusal"] | {"message": ""} == {
        "code": "DUPLICATE_CONFLICT",
        "rule": nack.metadata["refusal"]["rule"],
        "path": "packet_id",
        "message": "",
    }
    taken = await running.pool.fetchval(
        "SELECT count(*) FROM apc_log.packet_ids WHERE packet_id = $1", stolen.packet_id
    )
    assert taken == 0


async def test_a_forged_sender_reaches_nobody(running: House, packet: Build, idea: IdeaPayload) -> None:
    forged = packet("blue-1", idea, ("sentinel",), parent=running.opening)
    await running.publish(forged, user="agent.red-1")
    anonymous = packet("blue-1", idea, ("sentinel",), parent=running.opening)
    await running.publish(anonymous, user_id=None)
    copied = packet("blue-1", idea, ("sentinel",), parent=running.opening)
    await running.publish(copied, headers={"CC": ["idea.watch.sentinel"]})
    in_the_gates_name = packet("blue-1", idea, ("sentinel",), parent=running.opening)
    sender = in_the_gates_name.sender.model_copy(update={"agent_id": "orchestrator"})
    await running.publish(in_the_gates_name.model_copy(update={"sender": sender}), user="orchestrator")
    await running.quiet()
    assert not await running.read("sentinel")
    codes = [row["code"] for row in await running.pool.fetch("SELECT code FROM apc_log.packet_conflicts")]
    assert codes == ["SENDER_MISMATCH"] * 4
    (nack,) = await running.nacks("red-1")
    assert nack.payload.acked_packet_id == forged.packet_id


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "MALFORMED"),
        (b"not json", "MALFORMED"),
        (b"\xef\xbb\xbf{}", "MALFORMED"),
        (b'{"a":1,"a":2}', "MALFORMED"),
        (b'{"a":NaN}', "MALFORMED"),
        (b'{"a":"\\u0000"}', "MALFORMED"),
        (b'{"a":"\\ud800"}', "MALFORMED"),
        (b'{"a":1e999}', "MALFORMED"),
        (b'{"a":9007199254740993}', "MALFORMED"),
        (b"[" * 40 + b"]" * 40, "TOO_DEEP"),
        (b'"' + b"x" * 300_000 + b'"', "TOO_LARGE"),
        (b"{}", "SCHEMA_INVALID"),
    ],
)
async def test_any_bytes_end_in_quarantine_with_an_answer(
    running: House, packet: Build, body: bytes, code: str
) -> None:
    message_id = str(uuid4())
    assert running.opening is not None
    await running.publish(running.opening, user="agent.red-1", body=body or b" ", message_id=message_id)
    await running.quiet()
    row = await running.pool.fetchrow("SELECT kind, code, raw FROM apc_log.packet_conflicts")
    kept = kept_of(body or b" ", load_contract().limits.refused)
    assert (row["kind"], row["code"], row["raw"]) == ("unreadable", code, kept.raw)
    (nack,) = await running.nacks("red-1")
    assert nack.payload.acked_packet_id.hex == message_id.replace("-", "")
    assert nack.trace.session_id == "_unknown"


async def test_clocks(running: House, packet: Build, idea: IdeaPayload) -> None:
    now = datetime.now(UTC)

    def stamped(minutes: int, ttl_ms: int = 3_600_000) -> Packet:
        created_at = now + timedelta(minutes=minutes)
        return packet("red-1", idea, ("sentinel",), parent=running.opening, created_at=created_at, ttl_ms=ttl_ms)

    sent = {"EXPIRED": stamped(-10, 1000), "CLOCK_SKEW": stamped(10), "": stamped(4)}
    for one in sent.values():
        await running.publish(one)
    await running.quiet()
    for code, one in sent.items():
        found = await running.pool.fetchval(
            "SELECT coalesce(refusal_code, '') FROM apc_log.agent_packets WHERE packet_id = $1", one.packet_id
        )
        assert found == code


async def test_an_unknown_session_is_refused_once_and_answered_each_time(
    running: House, packet: Build, idea: IdeaPayload
) -> None:
    stray = packet("red-1", idea, ("sentinel",), session_id="elsewhere")
    for _ in range(2):
        await running.publish(stray)
    await running.quiet()
    rows = await running.pool.fetch("SELECT refusal_code FROM apc_log.agent_packets WHERE session_id = 'elsewhere'")
    assert [row["refusal_code"] for row in rows] == ["UNKNOWN_SESSION"]
    codes = [nack.metadata["refusal"]["code"] for nack in await running.nacks("red-1")]
    assert codes == ["UNKNOWN_SESSION"] * 2


async def test_what_expired_before_its_session_began_is_logged_as_expired(
    running: House, packet: Build, idea: IdeaPayload
) -> None:
    created_at = datetime.now(UTC) - timedelta(minutes=1)
    stale = packet("red-1", idea, ("sentinel",), session_id="elsewhere", created_at=created_at, ttl_ms=1000)
    await running.publish(stale)
    await running.quiet()
    row = await running.pool.fetchrow(
        "SELECT events, to_state FROM apc_log.packet_events WHERE packet_id = $1", stale.packet_id
    )
    assert row is not None and tuple(row) == (["emit", "schema_pass", "ttl_expired"], "EXPIRED")


@pytest.mark.parametrize("is_loaded", [False, True])
async def test_a_packet_refused_before_its_session_began_stays_refused(
    house: House, packet: Build, start: Build, idea: IdeaPayload, is_loaded: bool
) -> None:
    opening = start()
    early = packet("red-1", idea, ("sentinel",))
    async with house.persister():
        async with house.gate():
            await house.register()
            await house.publish(early)
            await house.quiet()
            if not is_loaded:
                await house.publish(opening)
                await house.publish(early)
                await house.quiet()
        if is_loaded:
            async with house.gate():
                await house.publish(opening)
                await house.publish(early)
                await house.quiet()
    assert len(await house.nacks("red-1")) == 2
    assert str(early.packet_id) not in {delivery.message.message_id for delivery in await house.read("sentinel")}
    assert await house.pool.fetchval("SELECT count(*) FROM apc_log.packet_conflicts") == 0


async def test_receipts_that_are_not_the_recipients_are_security_events(
    running: House, packet: Build, idea: IdeaPayload
) -> None:
    sent = packet("red-1", idea, ("sentinel",), parent=running.opening)
    await running.publish(sent)
    await running.report("sentinel", sent.packet_id, "delivery_ack", user="agent.red-1")
    await running.report("blue-1", sent.packet_id, "delivery_ack")
    await running.report("sentinel", sent.packet_id, "verification_pass")
    await running.quiet()
    rows = await running.pool.fetch("SELECT kind FROM apc_log.packet_conflicts")
    assert [row["kind"] for row in rows] == ["security"] * 3
    document = orjson.loads(await running.pool.fetchval("SELECT document FROM apc_log.sessions"))
    assert document["state"] == "SESSION_OPEN"
