"""The export read with the published client's own event classes: what they would send is what we say."""

import json
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

from msgspec.structs import replace
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import DatasetFacet, RunFacet, parent_run
from openlineage.client.serde import Serde
from tests.support.log import LogBench, packet_entry, session_row

from apc_log.batch import PacketEntry
from apc_persister.openlineage import Event, events_of, openlineage_events

DIGEST, OTHER = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"
METRICS = {"rtf": 1.0, "outcome": 0.75}
ARTIFACT = {"artifact_id": "model", "artifact_kind": "MODEL_SNAPSHOT", "artifact_uri": "u", "artifact_hash": DIGEST}
EVAL = {"metric_set": METRICS, "thresholds": {"rtf": 1.0}, "pass": True}
CLAIM = {"claim_id": "c", "hypothesis_id": "h", "text": "t", "confidence_pre": 0.1, "confidence_post": 0.9}


def said(packet_type: str, payload: dict[str, Any], agent: str, parent: PacketEntry | None = None) -> PacketEntry:
    proof = {"evidence_refs": [OTHER]} if packet_type == "CLAIM" else None
    body = json.dumps({"payload": payload, "proof_bundle": proof}).encode()
    entry = packet_entry(packet_type=packet_type, parent=parent)
    return replace(entry, sender_agent_id=agent, body=body, packet_hash=sha256(body).digest())


async def exported(bench: LogBench) -> list[Event]:
    artifact = said("ARTIFACT", ARTIFACT, "builder")
    entries = [artifact, said("CLAIM", CLAIM, "builder"), said("EVAL", EVAL, "sentinel", artifact)]
    refused = replace(packet_entry(refusal_code="EXPIRED"), sender_agent_id="nobody")
    await bench.gate.open()
    await bench.gate.log([*entries, refused, packet_entry(run_id="run-2")], [session_row(state="CLOSED")])
    await bench.write()
    return [event async for event in openlineage_events(bench.pool, "run-1")]


async def test_agents_are_jobs_tasks_are_runs_and_artifacts_are_datasets(bench: LogBench) -> None:
    events = await exported(bench)
    assert [(event["job"]["name"], event["eventType"]) for event in events] == [
        ("builder", "START"),
        ("builder", "COMPLETE"),
        ("sentinel", "START"),
        ("sentinel", "COMPLETE"),
    ]
    built, judged = events[1], events[3]
    assert [one["name"] for one in built["outputs"]] == [DIGEST]
    assert [one["name"] for one in built["inputs"]] == [OTHER]
    assert built["run"]["facets"]["apc_claims"]["claims"][0].items() >= CLAIM.items()
    assert [one["name"] for one in judged["inputs"]] == [DIGEST]
    assert judged["run"]["facets"]["apc_gates"]["gates"][0].items() >= {"metrics": METRICS, "pass": True}.items()
    assert events[0]["run"]["runId"] == built["run"]["runId"] != judged["run"]["runId"]


async def test_the_client_s_classes_say_the_same(bench: LogBench) -> None:
    for event in await exported(bench):
        assert Serde.to_dict(as_client(event)) == Serde.remove_nulls_and_enums(event)


async def test_an_export_is_the_same_each_time(bench: LogBench) -> None:
    events = await exported(bench)
    assert [event async for event in openlineage_events(bench.pool, "run-1")] == events
    assert [event async for event in openlineage_events(bench.pool, "no such run")] == []


async def test_open_metrics_are_no_gate(bench: LogBench) -> None:
    """An EVAL of apc/1.1 measures what a team wants; the export has the gates of research."""
    artifact = said("ARTIFACT", ARTIFACT, "builder")
    measured = said("EVAL", {"metrics": {"latency_ms": 12.0}, "pass": True}, "sentinel", artifact)
    await bench.gate.open()
    await bench.gate.log([artifact, measured, said("EVAL", EVAL, "sentinel", artifact)], [session_row(state="CLOSED")])
    await bench.write()
    events = [event async for event in openlineage_events(bench.pool, "run-1")]
    (gate,) = events[-1]["run"]["facets"]["apc_gates"]["gates"]
    assert gate["metrics"] == METRICS


def test_nothing_told_is_no_event() -> None:
    assert list(events_of("run-1", [], "COMPLETE")) == []


def as_client(event: Event) -> RunEvent:
    """Return the event as the client's user would have made it; the schema addresses are the client's own."""
    assert datetime.fromisoformat(event["eventTime"]).utcoffset() == timedelta(0)
    run, job = event["run"], event["job"]
    facets = {name: facet(RunFacet, value) for name, value in run["facets"].items() if name != "parent"}
    parent = run["facets"]["parent"]
    facets["parent"] = parent_run.ParentRunFacet(
        run=parent_run.Run(**parent["run"]), job=parent_run.Job(**parent["job"]), producer=parent["_producer"]
    )
    made = RunEvent(
        eventType=RunState(event["eventType"]),
        eventTime=event["eventTime"],
        producer=event["producer"],
        run=Run(run["runId"], facets),
        job=Job(**job),
        inputs=[InputDataset(one["namespace"], one["name"]) for one in event["inputs"]],
        outputs=[
            OutputDataset(
                one["namespace"],
                one["name"],
                facets={name: facet(DatasetFacet, value) for name, value in one["facets"].items()},
            )
            for one in event["outputs"]
        ],
    )
    assert made.schemaURL == event["schemaURL"]
    return made


def facet(kind: type[Any], value: dict[str, Any]) -> Any:
    own = {name: item for name, item in value.items() if not name.startswith("_")}
    made = kind(producer=value["_producer"]).with_additional_properties(**own)
    assert made._schemaURL == value["_schemaURL"]
    return made
