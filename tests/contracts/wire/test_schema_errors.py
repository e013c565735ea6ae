"""Each broken rule of the schema is refused at its place, in the sender's own terms."""

import json
from typing import Any

import pytest

from apc_contracts import PacketRefused, parse_packet
from apc_contracts.wire.parsing import MAX_MESSAGE_LENGTH, MAX_PATH_LENGTH, read_packet

from ..conftest import OTHER_ID, PACKET_ID, Change, Documents, put


def cut(path: str) -> Change:
    """Takes a field out."""

    def change(document: dict[str, Any]) -> None:
        *parents, field = path.split(".")
        target: Any = document
        for parent in parents:
            target = target[int(parent) if parent.isdigit() else parent]
        del target[field]

    return change


def both(*changes: Change) -> Change:
    def change(document: dict[str, Any]) -> None:
        for one in changes:
            one(document)

    return change


STATE = {
    "state": "INDEPENDENT_DISCOVERY",
    "run_phase": "DISCOVERY",
    "round": 0,
    "generation": 3,
    "step": 4,
    "paused": False,
    "scores": {"linear": 0.5},
    "subjects": [OTHER_ID],
}
CASES: list[tuple[str, Change, str, str]] = [
    ("IDEA", cut("packet_type"), "packet_type", "missing"),
    ("IDEA", put("packet_type", "GOSSIP"), "packet_type", "use one of 'TASK_IR'"),
    ("IDEA", put("packet_type", 7), "packet_type", "use one of"),
    ("IDEA", put("protocol_version", "apc/2.0"), "protocol_version", "'apc/1.0'"),
    ("IDEA", cut("protocol_version"), "protocol_version", "missing: add it"),
    ("IDEA", put("surplus", 1), "surplus", "remove it"),
    ("IDEA", put("packet_id", PACKET_ID.upper()), "packet_id", "lower case with hyphens"),
    ("IDEA", put("packet_id", PACKET_ID.replace("-", "")), "packet_id", "UUID"),
    ("IDEA", put("packet_id", f"{{{PACKET_ID}}}"), "packet_id", "UUID"),
    ("IDEA", put("packet_id", f"urn:uuid:{PACKET_ID}"), "packet_id", "UUID"),
    ("IDEA", put("channel", "inter_agent"), "channel", "'INTER_AGENT' or 'INTRA_AGENT'"),
    ("IDEA", put("run_phase", None), "run_phase", "'RESEARCH'"),
    ("IDEA", put("created_at", "2026-02-19T07:50:00"), "created_at", "RFC 3339"),
    ("IDEA", put("created_at", "2026-02-19 07:50:00Z"), "created_at", "RFC 3339"),
    ("IDEA", put("created_at", "1771487400"), "created_at", "RFC 3339"),
    ("IDEA", put("created_at", 1771487400), "created_at", "must be a string"),
    ("IDEA", put("created_at", "2026-02-30T07:50:00Z"), "created_at", "no such time"),
    ("IDEA", put("created_at", "2026-02-19T07:50:60Z"), "created_at", "RFC 3339"),
    ("IDEA", put("created_at", "0000-01-01T00:00:00Z"), "created_at", "no such time"),
    ("IDEA", put("created_at", "0001-01-01T00:00:00+01:00"), "created_at", "no such time"),
    ("IDEA", put("created_at", "9999-12-31T23:59:59Z"), "created_at", "9998-12-31"),
    ("IDEA", put("created_at", "9999-12-31T23:59:59-01:00"), "created_at", "no such time"),
    ("IDEA", put("expires_at", "tomorrow"), "expires_at", "RFC 3339"),
    ("IDEA", put("sender.agent_id", "a b"), "sender.agent_id", "1 to 64"),
    ("IDEA", put("sender.agent_id", "x" * 65), "sender.agent_id", "1 to 64"),
    ("IDEA", put("sender.agent_id", "-x"), "sender.agent_id", "begin with"),
    ("IDEA", put("sender.agent_id", "bu\u0131lder"), "sender.agent_id", "A-Z a-z"),
    ("IDEA", put("sender.role", ""), "sender.role", "at least 1"),
    ("IDEA", put("sender.role", "r" * 257), "sender.role", "at most 256"),
    ("IDEA", put("recipients", []), "recipients", "at least 1 item"),
    ("IDEA", put("recipients", {}), "recipients", "JSON array"),
    ("IDEA", put("recipients", [{}]), "recipients[0].agent_id", "missing"),
    ("IDEA", put("recipients", [{"agent_id": "a", "x": 1}]), "recipients[0].x", "unknown field"),
    (
        "IDEA",
        both(put("channel", "INTRA_AGENT"), put("recipients", [{"agent_id": "a"}, {"agent_id": "b"}])),
        "recipients",
        "exactly one recipient",
    ),
    ("IDEA", put("trace.session_id", "s/1"), "trace.session_id", "1 to 64"),
    ("IDEA", put("trace.generation", -1), "trace.generation", "greater than or equal to 0"),
    ("IDEA", put("trace.generation", True), "trace.generation", "must be an integer"),
    ("IDEA", put("trace.generation", "4"), "trace.generation", "must be an integer"),
    ("IDEA", put("trace.vector_clock", {"a b": 1}), "trace.vector_clock.a b", "1 to 64"),
    ("IDEA", put("trace.vector_clock", {"a": -1}), "trace.vector_clock.a", "greater than or equal to 0"),
    ("IDEA", put("trace.root_packet_id", OTHER_ID), "trace.root_packet_id", "is its own root"),
    ("IDEA", put("trace.parent_packet_id", OTHER_ID), "trace.root_packet_id", "keeps its parent's root"),
    (
        "IDEA",
        both(put("trace.parent_packet_id", PACKET_ID), put("trace.root_packet_id", OTHER_ID)),
        "trace.parent_packet_id",
        "its own parent",
    ),
    ("IDEA", put("routing.priority", 10), "routing.priority", "less than or equal to 9"),
    ("IDEA", put("routing.ttl_ms", 0), "routing.ttl_ms", "greater than or equal to 1"),
    ("IDEA", put("routing.ttl_ms", 86_400_001), "routing.ttl_ms", "less than or equal to 86400000"),
    ("IDEA", put("routing.requires_ack", 1), "routing.requires_ack", "true or false"),
    ("IDEA", put("routing.ack_timeout_ms", 3_600_001), "routing.ack_timeout_ms", "3600000"),
    ("IDEA", put("routing.retry_limit", 11), "routing.retry_limit", "10"),
    ("IDEA", put("confidence", 1.01), "confidence", "less than or equal to 1"),
    ("IDEA", put("confidence", True), "confidence", "must be a number"),
    ("IDEA", put("confidence", "0.5"), "confidence", "must be a number"),
    ("IDEA", put("symbolic_keys", ["a", "a"]), "symbolic_keys", "listed twice"),
    ("IDEA", put("symbolic_keys", ["a", ""]), "symbolic_keys[1]", "at least 1 character"),
    ("IDEA", put("symbolic_keys", [str(key) for key in range(33)]), "symbolic_keys", "at most 32"),
    ("IDEA", put("metadata", []), "metadata", "JSON object"),
    ("IDEA", put("payload", []), "payload", "JSON object"),
    ("IDEA", put("payload.expected_impact.risk_change", -1.1), "payload.expected_impact.risk_change", "-1"),
    ("IDEA", put("payload.complexity", {"data_volume_class": "XXL"}), "payload.complexity.data_volume_class", "'XS'"),
    ("IDEA", put("payload.assumptions", ["a", 1]), "payload.assumptions[1]", "must be a string"),
    ("IDEA", put("lineage", {"protocol_id": "", "transfer_mode": "COMMONS_SEED"}), "lineage.protocol_id", "1"),
    ("IDEA", put("lineage", {"protocol_id": "p", "transfer_mode": "X"}), "lineage.transfer_mode", "SELECTIVE_IMPORT"),
    ("CLAIM", put("proof_bundle.falsifiers.0.cost", "free"), "proof_bundle.falsifiers[0].cost", "'low'"),
    (
        "CLAIM",
        put("proof_bundle.gate_scores.generalization_ratio", 2.1),
        "proof_bundle.gate_scores.generalization_ratio",
        "2",
    ),
    (
        "CLAIM",
        put("proof_bundle.signatures.0.payload_hash", "AB" * 32),
        "proof_bundle.signatures[0].payload_hash",
        "lower-case",
    ),
    ("TASK_IR", put("payload.objects", []), "payload.objects", "at least 1"),
    ("TASK_IR", put("payload.objects.1.type", "Poem"), "payload.objects[1].type", "use one of 'Claim'"),
    ("TASK_IR", cut("payload.objects.0.type"), "payload.objects[0].type", "missing"),
    ("TASK_IR", cut("payload.objects.1.cost"), "payload.objects[1].cost", "missing"),
    ("TASK_IR", put("payload.objects.4.supports", "yes"), "payload.objects[4].supports", "true or false"),
    (
        "TASK_IR",
        put("payload.formula_bundle.ode_system.num_points", 4),
        "payload.formula_bundle.ode_system.num_points",
        "5",
    ),
    (
        "TASK_IR",
        put("payload.formula_bundle.ode_system.equations", []),
        "payload.formula_bundle.ode_system.equations",
        "1",
    ),
    (
        "TASK_IR",
        put("payload.formula_bundle.ode_system.parameters", {"k": "fast"}),
        "payload.formula_bundle.ode_system.parameters.k",
        "must be a number",
    ),
    ("TASK_IR", put("payload.formula_bundle.ast_json", "neg(x)"), "payload.formula_bundle.ast_json", "JSON object"),
    (
        "TASK_IR",
        put("payload.formula_bundle.var_ontology", {"x": 3}),
        "payload.formula_bundle.var_ontology.x",
        "string",
    ),
    ("ARTIFACT", put("payload.artifact_hash", "0a" * 32), "payload.artifact_hash", "`sha256:`"),
    ("ARTIFACT", put("payload.artifact_kind", "POEM"), "payload.artifact_kind", "'CODE_PATCH'"),
    ("SIGNAL", put("payload.signal", "DANCE"), "payload.signal", "'START'"),
    ("SIGNAL", put("payload.signal", "STOP"), "payload.session", "remove it from STOP"),
    ("SIGNAL", put("payload.session", STATE), "payload.session", "START carries a SessionSpec"),
    ("SIGNAL", put("payload.signal", "SYNC"), "payload.session", "SYNC carries a SessionState"),
    ("SIGNAL", put("payload.session.swarms", []), "payload.session.swarms", "at least 1"),
    ("SIGNAL", put("payload.session.swarms.1.swarm_id", "linear"), "payload.session.swarms[1].swarm_id", "twice"),
    ("SIGNAL", put("payload.session.swarms.1.agents", ["a", "a"]), "payload.session.swarms[1].agents[1]", "twice"),
    ("SIGNAL", put("payload.session.max_rounds", 0), "payload.session.max_rounds", "1"),
    ("SIGNAL", put("payload.session.state_deadline_ms", 10**15), "payload.session.state_deadline_ms", "31536000000"),
    ("SIGNAL", put("payload.session.budgets.cost", -1), "payload.session.budgets.cost", "0"),
    ("SIGNAL", put("payload.session", 3), "payload.session", "JSON object"),
    ("HEARTBEAT", put("payload.session", STATE), "payload.session", "remove it from HEARTBEAT"),
    ("EVAL", put("payload.metric_set.outcome", 1.5), "payload.metric_set.outcome", "1"),
    ("EVAL", both(cut("payload.pass"), put("payload.passed", True)), "payload.pass", "missing"),
    ("EVAL", cut("payload.thresholds.rtf"), "payload.thresholds.rtf", "missing"),
    ("TRANSFER", put("payload.transfer_policy.top_k", 11), "payload.transfer_policy.top_k", "10"),
    (
        "TRANSFER",
        put("payload.transfer_policy.threshold_multiplier", 0.9),
        "payload.transfer_policy.threshold_multiplier",
        "1",
    ),
    ("TRANSFER", put("lineage.protocol_id", "other"), "lineage.protocol_id", "disagree"),
    ("TRANSFER", put("lineage.transfer_mode", "COMMONS_SEED"), "lineage.transfer_mode", "disagree"),
    ("ARBITRATION", put("payload.winner_candidate_id", "none"), "payload.winner_candidate_id", "no candidate"),
    ("ARBITRATION", put("payload.candidates.1.candidate_id", "one"), "payload.candidates[1].candidate_id", "twice"),
    (
        "ARBITRATION",
        put("payload.candidates.0.packet_ref_ids", ["x"]),
        "payload.candidates[0].packet_ref_ids[0]",
        "UUID",
    ),
    ("DECISION", put("payload.priority_distribution.speed", 2), "payload.priority_distribution.speed", "1"),
    ("RETRACTION", put("payload.target_packet_id", ""), "payload.target_packet_id", "UUID"),
    ("ACK", put("payload.ack_status", "REJECTED"), "payload.ack_status", "'ACCEPTED' or 'DEFERRED'"),
    ("NACK", put("payload.ack_status", "ACCEPTED"), "payload.ack_status", "'REJECTED' or 'DEFERRED'"),
    ("ERROR", put("payload.details", "text"), "payload.details", "JSON object"),
    ("ERROR", put("payload.extra", 1), "payload.extra", "unknown field"),
]


@pytest.mark.parametrize(
    ("packet_type", "change", "path", "message"), CASES, ids=[f"{case[0]}-{case[2]}" for case in CASES]
)
def test_refused_at_its_place(document: Documents, packet_type: str, change: Change, path: str, message: str) -> None:
    broken = document(packet_type)
    change(broken)
    with pytest.raises(PacketRefused) as refused:
        parse_packet(json.dumps(broken).encode())
    assert (refused.value.code, refused.value.path) == ("SCHEMA_INVALID", path)
    assert message in refused.value.message


def test_a_lineage_without_transfer_mode_is_read(document: Documents) -> None:
    given = document("TRANSFER")
    cut("lineage.transfer_mode")(given)
    lineage = parse_packet(json.dumps(given).encode()).lineage
    assert lineage is not None and lineage.transfer_mode is None


@pytest.mark.parametrize("body", [b"[]", b"3", b"null", b'"packet"', b"true"])
def test_a_document_that_is_no_object(body: bytes) -> None:
    with pytest.raises(PacketRefused, match=r"^SCHEMA_INVALID at \$: must be a JSON object"):
        parse_packet(body)


def test_stricter_than_some_readers_of_json_schema(document: Documents) -> None:
    broken = document()
    broken["sender"]["agent_id"] = "a\n"
    with pytest.raises(PacketRefused) as refused:
        parse_packet(json.dumps(broken).encode())
    assert refused.value.path == "sender.agent_id"


def test_an_integer_may_have_a_fraction_of_zeros(document: Documents) -> None:
    """JSON Schema takes 4.0 for an integer, and the canonical form writes it as 4."""
    written = json.dumps(document("TRANSFER"))
    plain = read_packet(written.encode())
    for number in ("4.0", "4.00", "4e0", "40e-1", "0.4E1"):
        read = read_packet(written.replace('"generation": 4', f'"generation": {number}').encode())
        assert read.packet == plain.packet and type(read.packet.trace.generation) is int
        assert read.payload_hash == plain.payload_hash
    loose = read_packet(written.replace('"top_k": 2', '"top_k": 2.0').encode())
    assert (loose.packet, loose.payload_hash) == (plain.packet, plain.payload_hash)


@pytest.mark.parametrize("value", [4.5, 1e300, "4", "4.0", True, None, [4.0]])
def test_what_is_no_integer(document: Documents, value: Any) -> None:
    broken = document()
    broken["trace"] |= {"generation": value, "step": 2.0}
    with pytest.raises(PacketRefused) as refused:
        parse_packet(json.dumps(broken).encode())
    assert (refused.value.path, refused.value.message) == ("trace.generation", "must be an integer")


def test_the_other_errors_are_counted(document: Documents) -> None:
    broken = {**document(), "confidence": 2, "channel": "x", "surplus": 1}
    with pytest.raises(PacketRefused, match=r"^SCHEMA_INVALID at channel: .* \(and 2 more\)$"):
        parse_packet(json.dumps(broken).encode())


def test_a_hostile_key_does_not_swell_the_refusal(document: Documents) -> None:
    with pytest.raises(PacketRefused) as refused:
        parse_packet(json.dumps({**document(), "x" * 200_000: 1}).encode())
    assert len(refused.value.path) == MAX_PATH_LENGTH
    with pytest.raises(PacketRefused) as refused:
        parse_packet(json.dumps({**document(), "packet_type": "x" * 200_000}).encode())
    assert len(refused.value.message) <= MAX_MESSAGE_LENGTH


def test_a_session_state_goes_with_sync(document: Documents) -> None:
    sync = document("SIGNAL")
    sync["payload"] = {"signal": "SYNC", "session": STATE}
    assert parse_packet(json.dumps(sync).encode())
    sync["payload"]["session"] = {**STATE, "scores": {"linear": 1.5}}
    with pytest.raises(PacketRefused, match=r"^SCHEMA_INVALID at payload.session.scores.linear"):
        parse_packet(json.dumps(sync).encode())


@pytest.mark.parametrize(
    ("change", "path", "message"),
    [
        (put("protocol_version", "apc/1.0"), "packet_type", "apc/1.0 has no MESSAGE: send apc/1.1"),
        (put("payload.schema", "finding"), "payload.schema", "must be the name and version of a schema"),
        (put("payload.schema", "finding/0"), "payload.schema", "must be the name and version of a schema"),
        (put("payload.schema", "../finding/1"), "payload.schema", "must be the name and version of a schema"),
        (put("payload.schema_id", "finding/1"), "payload.schema_id", "unknown field"),
        (put("payload.content", [1]), "payload.content", "must be a JSON object"),
        (put("payload.content", None), "payload.content", "must be a JSON object"),
    ],
)
def test_a_message_that_is_none(document: Documents, change: Change, path: str, message: str) -> None:
    built = document("MESSAGE")
    change(built)
    with pytest.raises(PacketRefused) as refused:
        parse_packet(json.dumps(built).encode())
    assert (refused.value.code, refused.value.path) == ("SCHEMA_INVALID", path)
    assert message in refused.value.message


def test_a_result_is_unknown_to_the_first_version(document: Documents) -> None:
    """The refusal is the one that apc/1.0 always had."""
    built = document("DECISION")
    built["payload"]["result"] = {"schema": "finding/1", "content": {}}
    with pytest.raises(PacketRefused) as refused:
        parse_packet(json.dumps(built).encode())
    assert str(refused.value) == (
        "SCHEMA_INVALID at payload.result: unknown field: remove it, or move it into metadata"
    )
    built["protocol_version"] = "apc/1.1"
    parse_packet(json.dumps(built).encode())
