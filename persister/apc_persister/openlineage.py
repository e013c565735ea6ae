"""A run as OpenLineage events: agent = Job, task = Run, artifact = Dataset, with facets for claims and gates.

Source: the OpenLineage object model, version 2-0-2 (https://openlineage.io/spec/2-0-2/OpenLineage.json). The events are
plain JSON objects; a test reads them with the published Python client's own classes.
"""

from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

import asyncpg
import orjson

from apc_contracts.packet import ARTIFACT_PREFIX
from apc_contracts.vocabulary import ORCHESTRATOR, PacketType
from apc_log.queries.packets import PacketRow, list_agent_packets

PRODUCER = "urn:apc-bus"
"""Who says so: the project has no public address."""
SCHEMA = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/"
PARENT_SCHEMA = "https://openlineage.io/spec/facets/1-2-0/ParentRunFacet.json#/$defs/ParentRunFacet"
FACET_SCHEMA = f"{SCHEMA}RunFacet"
NAMESPACE = "apc"
ARTIFACTS = "apc:artifacts"
PAGE = 500

_ENDS = """
SELECT bool_and(is_terminal) AS is_over, bool_or(state = 'HALTED') AS is_halted
FROM apc_log.sessions WHERE run_id = $1
"""

Event = dict[str, Any]
_TOLD = frozenset({PacketType.ARTIFACT, PacketType.EVAL, PacketType.CLAIM})


@dataclass(slots=True)
class TaskRun:
    """What one agent did for one task."""

    agent_id: str
    task_id: str
    began_at: datetime
    ended_at: datetime
    inputs: dict[str, None] = field(default_factory=dict)
    """Hashes of artifacts that its packets rest on, in order."""
    outputs: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Hash -> the ARTIFACT's payload."""
    claims: list[dict[str, Any]] = field(default_factory=list)
    gates: list[dict[str, Any]] = field(default_factory=list)


async def openlineage_events(pool: asyncpg.Pool, run_id: str) -> AsyncIterator[Event]:
    """Yield the events of a run: START and an end for each agent and task; none when the log holds nothing of it.

    Accepted packets of agents count. A body that was erased tells nothing but that its agent was at work.
    """
    tasks = await _collect(pool, run_id)
    ((is_over, is_halted),) = await pool.fetch(_ENDS, run_id)
    end = "RUNNING" if not is_over else "ABORT" if is_halted else "COMPLETE"
    for event in events_of(run_id, tasks, end):
        yield event


def events_of(run_id: str, told: Iterable[TaskRun], end: str) -> Iterator[Event]:
    """Yield START, and `end` (COMPLETE, ABORT or RUNNING) with everything known by then."""
    for task in told:
        yield _event("START", task.began_at, run_id, task, {}, {})
        yield _event(end, task.ended_at, run_id, task, task.outputs, _facets(task))


def run_uuid(run_id: str, *parts: str) -> UUID:
    """Return the runId of a run of ours, or of an agent's part in it: the same for every export."""
    return uuid5(NAMESPACE_URL, "/".join(("apc:openlineage", run_id, *parts)))


async def _collect(pool: asyncpg.Pool, run_id: str) -> list[TaskRun]:
    task_runs: dict[tuple[str, str], TaskRun] = {}
    hash_of: dict[UUID, str] = {}
    after = None
    while page := await list_agent_packets(pool, run_id=run_id, limit=PAGE, after=after):
        after = page[-1].position
        for row in page:
            if row.verdict != "accepted" or row.sender_agent_id == ORCHESTRATOR:
                continue
            key = (row.sender_agent_id, row.task_id)
            task = task_runs.setdefault(key, TaskRun(*key, row.judged_at, row.judged_at))
            task.ended_at = row.judged_at
            if row.packet_type in _TOLD:
                _tell(task, row, hash_of)
    return list(task_runs.values())


def _tell(task: TaskRun, row: PacketRow, hash_of: dict[UUID, str]) -> None:
    packet = _content(row)
    if packet is None:
        return
    payload, proof = packet["payload"], packet.get("proof_bundle") or {}
    rests_on = [ref for ref in proof.get("evidence_refs", ()) if ref.startswith(ARTIFACT_PREFIX)]
    if row.parent_packet_id in hash_of:
        rests_on.append(hash_of[row.parent_packet_id])
    own = payload.get("artifact_hash")
    task.inputs.update(dict.fromkeys(ref for ref in rests_on if ref != own))
    if row.packet_type == PacketType.ARTIFACT:
        hash_of[row.packet_id] = own
        task.outputs[own] = payload
    elif row.packet_type == PacketType.CLAIM:
        task.claims.append({"packet_id": str(row.packet_id), **payload})
    elif "metric_set" in payload:
        gate = {"packet_id": str(row.packet_id), "metrics": payload["metric_set"], "pass": payload["pass"]}
        task.gates.append(gate | {"thresholds": payload["thresholds"]})


def _content(row: PacketRow) -> dict[str, Any] | None:
    """Return the packet's JSON; None where the body is not to be read any more."""
    try:
        packet = orjson.loads(row.body)
    except (orjson.JSONDecodeError, TypeError):
        return None
    return packet if isinstance(packet, dict) else None


def _event(
    kind: str,
    at: datetime,
    run_id: str,
    task: TaskRun,
    outputs: dict[str, dict[str, Any]],
    facets: dict[str, Any],
) -> Event:
    return {
        "eventType": kind,
        "eventTime": at.astimezone(UTC).isoformat(),
        "producer": PRODUCER,
        "schemaURL": f"{SCHEMA}RunEvent",
        "run": {
            "runId": str(run_uuid(run_id, task.agent_id, task.task_id)),
            "facets": {"parent": _parent(run_id), **facets},
        },
        "job": {"namespace": NAMESPACE, "name": task.agent_id, "facets": {}},
        "inputs": [] if kind == "START" else [_dataset(digest) | {"inputFacets": {}} for digest in task.inputs],
        "outputs": [_dataset(digest, payload) | {"outputFacets": {}} for digest, payload in outputs.items()],
    }


def _parent(run_id: str) -> dict[str, Any]:
    return {
        "_producer": PRODUCER,
        "_schemaURL": PARENT_SCHEMA,
        "run": {"runId": str(run_uuid(run_id)), "facets": {}},
        "job": {"namespace": NAMESPACE, "name": run_id, "facets": {}},
    }


def _facets(task: TaskRun) -> dict[str, Any]:
    base = {"_producer": PRODUCER, "_schemaURL": FACET_SCHEMA}
    facets: dict[str, Any] = {"apc_task": base | {"task_id": task.task_id}}
    if task.claims:
        facets["apc_claims"] = base | {"claims": task.claims}
    if task.gates:
        facets["apc_gates"] = base | {"gates": task.gates}
    return facets


def _dataset(digest: str, payload: dict[str, Any] | None = None) -> dict[str, Any]:
    facets = {}
    if payload is not None:
        about = {name: payload[name] for name in ("artifact_id", "artifact_kind", "artifact_uri")}
        facets["apc_artifact"] = {"_producer": PRODUCER, "_schemaURL": f"{SCHEMA}DatasetFacet", **about}
    return {"namespace": ARTIFACTS, "name": digest, "facets": facets}
