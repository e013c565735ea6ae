"""Open a session from an accepted SIGNAL START and its spec."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from apc_contracts.admission.rules.task import resolve_places
from apc_contracts.contract.contract import Contract
from apc_contracts.errors import ContractInvalid
from apc_contracts.packet import Packet
from apc_contracts.payloads.by_type import SignalFields
from apc_contracts.payloads.session_signals import SessionSpec, TaskSessionSpec
from apc_contracts.session.document import SessionDocument, TaskDocument, Work
from apc_contracts.session.movement import COORDINATION
from apc_contracts.session.session import Session

Places = Mapping[str, Sequence[str]]


def open_session(start: Packet, now: datetime, contract: Contract, places: Places | None = None) -> Session:
    """Return a new session from an accepted SIGNAL START; `advance` with the START itself comes next.

    `places` are deciders and reviewers as the verdict's facts have them, roles resolved.

    Raises:
        ContractInvalid: the machine's initial state has no run_phase in the contract.
    """
    spec = start.payload_as(SignalFields).session
    common = _common(start, now, contract)
    if isinstance(spec, TaskSessionSpec):
        document: SessionDocument = _task_document(start, spec, places, common)
    else:
        assert isinstance(spec, SessionSpec), "an accepted START has a spec"
        document = _research_document(start, spec, common)
    session = Session(document, contract.selection.verified_score_epsilon)
    session.open_dossier(contract.team)
    return session


def contract_named(packet: Packet) -> str | None:
    """Return the contract that a START names; None when it names none, and for other packets."""
    payload = packet.payload
    if not isinstance(payload, SignalFields) or not isinstance(payload.session, SessionSpec | TaskSessionSpec):
        return None
    return payload.session.contract


def _common(start: Packet, now: datetime, contract: Contract) -> dict[str, Any]:
    """Return the fields that do not depend on the coordinator."""
    trace = start.trace
    initial = contract.machine(COORDINATION).initial
    phase = contract.phase_of(initial)
    if phase is None:
        raise ContractInvalid("phase_of_state", f"the initial state {initial} has no run_phase")
    return {
        "session_id": trace.session_id,
        "run_id": trace.run_id,
        "task_id": trace.task_id,
        "opener": start.sender.agent_id,
        "contract_hash": contract.hash.hex(),
        "start_packet_id": start.packet_id,
        "opened_at": now,
        "state": initial,
        "run_phase": phase,
    }


def _research_document(start: Packet, spec: SessionSpec, common: dict[str, Any]) -> SessionDocument:
    return SessionDocument(
        **common,
        swarms={swarm.swarm_id: list(swarm.agents) for swarm in spec.swarms},
        members=list(spec.members),
        task_ids=list(dict.fromkeys((*spec.task_ids, start.trace.task_id))),
        generation_limit=spec.generation_limit,
        convergence_generations=spec.convergence_generations,
        generation_deadline_ms=spec.generation_deadline_ms,
        state_deadline_ms=spec.state_deadline_ms,
        max_rounds=spec.max_rounds,
        search_ms=spec.search_ms,
        veto_window_ms=spec.veto_window_ms,
        budgets=spec.budgets.model_dump(exclude_none=True),
    )


def _task_document(start: Packet, spec: TaskSessionSpec, places: Places | None, common: dict[str, Any]) -> TaskDocument:
    """Return the document of a task: no generations, and one deadline for the whole session."""
    held = places if places is not None else resolve_places(spec, start.sender.agent_id, {})
    return TaskDocument(
        **common,
        swarms={},
        members=list(spec.members),
        task_ids=list(dict.fromkeys((*spec.task_ids, start.trace.task_id))),
        generation_limit=0,
        generation_deadline_ms=0,
        state_deadline_ms=spec.deadline_ms,
        max_rounds=spec.max_rounds,
        veto_window_ms=0,
        budgets=spec.budgets.model_dump(exclude_none=True),
        work=Work(
            contract=spec.contract,
            deciders=list(held["deciders"]),
            reviewers=list(held["reviewers"]),
            approvals=spec.approvals,
            halts_on_failure=spec.on_failure == "halt",
        ),
    )
