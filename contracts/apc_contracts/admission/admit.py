"""Judging: `admit` on arrival, `judge_held` at RESUME, `judge_transfer` at a barrier, `validate_offline` alone.

Pure: no clock, no I/O.
"""

from typing import Any

from apc_contracts.admission.case import Case, Ruling, Stage
from apc_contracts.admission.record import facts_record, note_warnings
from apc_contracts.admission.rules.budget import budget_is_left, quota_is_left
from apc_contracts.admission.rules.capacity import bytes_have_room, session_has_room
from apc_contracts.admission.rules.drift import warnings_of
from apc_contracts.admission.rules.newness import ends_no_loop
from apc_contracts.admission.rules.order import plan
from apc_contracts.contract.contract import Contract
from apc_contracts.errors import PacketRefused
from apc_contracts.judging.facts import Facts
from apc_contracts.judging.session_view import SessionView
from apc_contracts.judging.verdict import Refusal, Verdict, VerdictKind
from apc_contracts.packet import Packet
from apc_contracts.wire.parsing import parse_packet


def admit(packet: Packet, session: SessionView | None, facts: Facts, contract: Contract) -> Verdict:
    """Return the verdict on a packet on arrival: a function of (packet, session, facts, contract) alone.

    ```python
    verdict = admit(packet, None, Facts(now=packet.created_at), load_contract())
    assert verdict.kind is VerdictKind.REFUSED
    assert verdict.refusal.code == "PHASE_FORBIDS_TYPE"  # apc/1.0 has no MESSAGE
    ```

    Without a registry in `facts` (offline) or without a session, the rules that need one are skipped. HELD is the
    verdict on a TRANSFER that waits for its barrier and on work in a paused session.
    """
    return judge(Case(packet, session, facts, contract), Stage.ARRIVAL)


def judge_held(packet: Packet, session: SessionView, facts: Facts, contract: Contract) -> Verdict:
    """Return the verdict at RESUME on a packet that was held by a pause.

    Its sender, signature and identity were judged on arrival and its budget was spent then; everything else is judged
    as if it arrived now. A TRANSFER may be HELD again, for its barrier.
    """
    return judge(Case(packet, session, facts, contract), Stage.RESUME)


def judge_transfer(
    packet: Packet,
    session: SessionView | None,
    facts: Facts,
    contract: Contract,
    generation: int | None = None,
) -> Refusal | None:
    """Return why a TRANSFER fails at a barrier that closes `generation` (default: the packet's own), or None.

    ```python
    policy = TransferPolicy(mode=TransferMode.WINNER_TO_LOSERS)
    offer = TransferPayload(
        protocol_id="ridge",
        from_swarm="a",
        to_swarm="b",
        sender_score=0.4,
        receiver_score=0.9,
        transfer_policy=policy,
    )
    fields = {name: getattr(packet, name) for name in MessagePacket.model_fields if name != "packet_type"}
    lineage = Lineage(protocol_id="ridge")
    transfer = TransferPacket(**{**fields, "protocol_version": "apc/1.0", "payload": offer, "lineage": lineage})
    refusal = judge_transfer(transfer, None, Facts(now=packet.created_at), load_contract())
    assert refusal is not None and refusal.code
    ```

    Checks windows, guards, min_generation, scores (verified ones where available), decay, anti-drift and inboxes.
    `rank_transfers` decides how many go through.
    """
    ruling = _first_ruling(Case(packet, session, facts, contract, generation), Stage.BARRIER)
    return ruling if isinstance(ruling, Refusal) else None


def transfer_record(
    packet: Packet,
    session: SessionView | None,
    facts: Facts,
    contract: Contract,
    refusal: Refusal | None,
    generation: int | None = None,
) -> dict[str, Any]:
    """Return the record of what `judge_transfer` read and ruled, for the log: `judge_recorded` takes it."""
    return facts_record(Case(packet, session, facts, contract, generation), Stage.BARRIER, refusal)


def judge(case: Case, stage: Stage) -> Verdict:
    """Return the verdict of a stage's rules, with the facts that a replay needs."""
    ruling = _first_ruling(case, stage)
    if ruling is VerdictKind.HELD and stage is Stage.ARRIVAL:
        ruling = _against_holding(case) or ruling
    record = facts_record(case, stage, ruling)
    if isinstance(ruling, Refusal):
        return Verdict(VerdictKind.REFUSED, ruling, facts=record)
    if ruling is VerdictKind.REPEAT or ruling is VerdictKind.RERUN:
        return Verdict(ruling, facts=record)
    warnings = warnings_of(case)
    if warnings:
        note_warnings(record, case, warnings)
    if case.team is not None and case.team.warnings:
        warnings = (*warnings, *case.team.warnings)
        record["warnings"] = [warning.rule for warning in warnings]
    return Verdict(ruling or VerdictKind.ACCEPTED, warnings=warnings, facts=record)


def _against_holding(case: Case) -> Refusal | None:
    """Return the first refusal of the rules that are checked once, on arrival, for a packet that will be held."""
    rules = (ends_no_loop, quota_is_left, bytes_have_room, session_has_room, budget_is_left)
    return next((refusal for rule in rules if (refusal := rule(case)) is not None), None)


def _first_ruling(case: Case, stage: Stage) -> Ruling:
    facts, session = case.facts, case.session
    rules = plan(
        stage,
        case.packet.packet_type,
        facts.registry is not None,
        session is not None,
        case.is_from_orchestrator,
    )
    for rule in rules:
        ruling = rule(case)
        if ruling is not None:
            return ruling
    return None


# A packet judged offline (docs/specification/contract.md section 14).
#
# There is no session and no registry; now = the packet's own created_at.


def validate_offline(body: bytes, contract: Contract) -> Verdict:
    """Return the verdict of the rules that need neither session nor registry; bytes that are no packet are REFUSED.

    ```python
    verdict = validate_offline(b"{}", load_contract())
    assert verdict.kind is VerdictKind.REFUSED
    ```
    """
    try:
        packet = parse_packet(body)
    except PacketRefused as error:
        refusal = Refusal(error.code, "parse_packet", error.path, error.message)
        return Verdict(VerdictKind.REFUSED, refusal)
    return judge_offline(packet, contract)


def judge_offline(packet: Packet, contract: Contract) -> Verdict:
    """Return the verdict of `validate_offline` for a packet that was parsed already."""
    return admit(packet, None, Facts(now=packet.created_at), contract)
