"""Same seed, same run: in one process and over RabbitMQ with a process for each role (agents.md section 7)."""

import json
import re
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from apc_console.testing import ApcCommand, FinishedRun, read_summary

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
NOTHING: Mapping[str, str] = MappingProxyType({})
NOT_COMPARED = frozenset({"artifact_uri", "step"})


@pytest.mark.timeout(500)
def test_every_sender_says_the_same_over_both_transports(
    apc: ApcCommand, amqp_vhost_url: str, postgres_url: str, finished_run: FinishedRun
) -> None:
    servers = {"APC_AMQP_URL": amqp_vhost_url, "APC_DATABASE_URL": postgres_url}
    options = ("--generations", "13", "--budget-seconds", "240", "--out", "out")
    run = apc("run", *options, timeout_seconds=400, given=servers)
    assert run.returncode == 0, run.stderr[-3000:]

    here = statements_of(finished_run.apc, finished_run.summary["run_id"])
    there = statements_of(apc, read_summary(apc.folder / "out")["run_id"], servers)

    assert here - there == Counter()
    assert there - here == Counter()


def statements_of(apc: ApcCommand, run_id: str, given: Mapping[str, str] = NOTHING) -> Counter[str]:
    """What was said by whom in which round and generation: type and payload, without ids and places."""
    replayed = apc("packet", "replay", "--run-id", run_id, "--out", "replay.json", given=given)
    assert replayed.returncode == 0, replayed.stderr
    text = (apc.folder / "replay.json").read_text().replace(run_id, "RUN")
    packets = [entry for entry in json.loads(text) if entry["kind"] == "packet"]
    return Counter(
        json.dumps(
            [
                packet["round"],
                packet["generation"],
                packet["sender_agent_id"],
                packet["packet_type"],
                comparable(packet["packet"]["payload"]),
            ]
        )
        for packet in packets
    )


def comparable(value: Any) -> Any:
    """The value without ids; what is ordered by id is ordered by content."""
    if isinstance(value, dict):
        pairs = [[comparable(key), comparable(item)] for key, item in value.items() if key not in NOT_COMPARED]
        return sorted(pairs, key=json.dumps)
    if isinstance(value, list):
        return sorted((comparable(item) for item in value), key=json.dumps)
    return UUID.sub("ID", value) if isinstance(value, str) else value
