"""Why a delivery failed, as the log tells it: the exception, the attempts, and what was handled before."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from tests.persister.queries.test_surroundings import explained, task_document
from tests.support.log import LogBench, hop, lifecycle, packet_entry, session_row

from apc_log.queries import list_dead
from apc_log.queries.failures import failures_of, halting_failure

STEP = {"schema": "step/1", "content": {"order": "A-2"}}


def error(parent: Any, message: str, sender: str) -> Any:
    told = packet_entry(packet_type="ERROR", parent=parent, payload={"error_code": "HANDLER_ERROR", "message": message})
    return msgspec.structs.replace(told, sender_agent_id=sender)


def dead(packet: Any, reason: str, attempt: int = 1) -> Any:
    said = json.dumps({"error": reason, "ended": "dead"}).encode()
    return hop(packet, ["dead_lettered"], "ROUTED", "DEAD_LETTERED", "worker", attempt, said)


async def test_the_exception_comes_from_the_error_that_answers_the_packet(bench: LogBench) -> None:
    before = packet_entry(packet_type="MESSAGE", recipients=("clerk",), payload=STEP)
    failed = packet_entry(packet_type="MESSAGE", recipients=("worker",), payload=STEP)
    told = error(failed, "KeyError: 'customer_id'", "worker")
    other = error(failed, "ValueError: of somebody else", "clerk")
    await bench.gate.open()
    await bench.gate.log([before, *lifecycle(before), failed, told, other, dead(failed, "handler_error", 4)], [])
    await bench.write()

    (found,) = await failures_of(bench.pool, await list_dead(bench.pool), looks_back=True)

    assert found.sentence == (
        f"worker could not handle MESSAGE step/1 of sender-1 (packet {failed.packet_id}) in 4 attempts: "
        "KeyError: 'customer_id'."
    )
    assert (found.exception_type, found.handled, found.is_dead, found.is_halted) == ("KeyError", "step/1", True, False)
    assert found.last_good is not None and found.last_good.packet_id == before.packet_id
    assert found.next_command == f"apc dead-letter requeue {failed.packet_id}"


@pytest.mark.parametrize(
    ("reason", "why"),
    [
        ("delivery_limit", "could not handle .*: its worker died with it too often."),
        ("retry_limit 3 reached: model is away", "asked for too many further attempts: 3 reached: model is away."),
        ("overflow", "did not reach worker: its inbox was full."),
    ],
)
async def test_without_an_exception_the_reason_of_the_log_says_why(bench: LogBench, reason: str, why: str) -> None:
    failed = packet_entry(packet_type="CLAIM", recipients=("worker",))
    await bench.gate.open()
    await bench.gate.log([failed, dead(failed, reason)], [])
    await bench.write()
    (found,) = await failures_of(bench.pool, await list_dead(bench.pool), looks_back=True)
    assert found.last_good is None and found.exception is None
    assert re.search(why, found.sentence)


async def test_what_the_last_retry_said_stands_in_for_an_error_that_is_missing(bench: LogBench) -> None:
    failed = packet_entry(packet_type="CLAIM", recipients=("worker",))
    said = json.dumps({"error": "TimeoutError: the model is away"}).encode()
    again = hop(failed, ["retry_scheduled"], "ROUTED", "ROUTED", "worker", 1, said)
    await bench.gate.open()
    await bench.gate.log([failed, again, dead(failed, "handler_error", 2)], [])
    await bench.write()
    (found,) = await failures_of(bench.pool, await list_dead(bench.pool))
    assert found.exception == "TimeoutError: the model is away"


async def test_a_halt_names_its_failure_also_when_no_dead_letter_is_left(
    bench: LogBench, postgres_url: str, tmp_path: Path
) -> None:
    failed = packet_entry(packet_type="MESSAGE", recipients=("worker",), payload=STEP)
    reason = f"HANDLER_FAILED worker could not handle MESSAGE {failed.packet_id}"
    halted = task_document(state="HALTED", halt_reason=reason)
    await bench.gate.open()
    await bench.gate.log(
        [failed, error(failed, "KeyError: 'customer_id'", "worker")],
        [session_row(state="HALTED", document=halted.encode())],
    )
    await bench.write()

    found = await halting_failure(bench.pool, "session-1", reason)
    told = await explained(tmp_path, postgres_url)

    assert found is not None and not found.is_dead and found.exception == "KeyError: 'customer_id'"
    assert found.next_command == f"apc packet trace --packet-id {failed.packet_id}"
    assert told["standing"] == f"HALTED, HANDLER_FAILED: {found.sentence.removesuffix('.')}"
    assert told["remarks"][0] == found.remedy
    assert await halting_failure(bench.pool, "session-1", "STALLED nothing is open") is None
    assert await halting_failure(bench.pool, "session-1", reason.replace(str(failed.packet_id), str(uuid4()))) is None


async def test_a_hostile_exception_is_one_line_of_a_bounded_length(bench: LogBench) -> None:
    failed = packet_entry(packet_type="CLAIM", recipients=("worker",))
    hostile = "E\x1b[31m: \u202e" + "\n" * 50 + "A" * 50_000
    await bench.gate.open()
    await bench.gate.log([failed, error(failed, hostile, "worker"), dead(failed, "handler_error")], [])
    await bench.write()
    (found,) = await failures_of(bench.pool, await list_dead(bench.pool))
    assert not set("\x1b\u202e\n") & set(found.sentence) and len(found.sentence) < 500
    assert dataclasses.replace(found, exception=None).why == "its handler failed"
