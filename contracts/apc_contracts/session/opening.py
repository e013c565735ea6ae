"""Open a session from an accepted SIGNAL START and its SessionSpec."""

from datetime import datetime

from apc_contracts.contract.contract import Contract
from apc_contracts.envelope.packet import Packet
from apc_contracts.errors import ContractInvalid
from apc_contracts.payloads.by_type import SignalFields
from apc_contracts.payloads.session_signals import SessionSpec
from apc_contracts.session.document import SessionDocument
from apc_contracts.session.movement import COORDINATION
from apc_contracts.session.session import Session


def open_session(start: Packet, now: datetime, contract: Contract) -> Session:
    """Return a new session from an accepted SIGNAL START; `advance` with the START itself comes next.

    Raises:
        ContractInvalid: the machine's initial state has no run_phase in the contract.
    """
    spec = start.payload_as(SignalFields).session
    assert isinstance(spec, SessionSpec), "an accepted START has a SessionSpec"
    trace = start.trace
    initial = contract.machine(COORDINATION).initial
    phase = contract.phase_of(initial)
    if phase is None:
        raise ContractInvalid("phase_of_state", f"the initial state {initial} has no run_phase")
    document = SessionDocument(
        session_id=trace.session_id,
        run_id=trace.run_id,
        task_id=trace.task_id,
        opener=start.sender.agent_id,
        contract_hash=contract.hash.hex(),
        start_packet_id=start.packet_id,
        opened_at=now,
        swarms={swarm.swarm_id: list(swarm.agents) for swarm in spec.swarms},
        members=list(spec.members),
        task_ids=list(dict.fromkeys((*spec.task_ids, trace.task_id))),
        generation_limit=spec.generation_limit,
        convergence_generations=spec.convergence_generations,
        generation_deadline_ms=spec.generation_deadline_ms,
        state_deadline_ms=spec.state_deadline_ms,
        max_rounds=spec.max_rounds,
        search_ms=spec.search_ms,
        veto_window_ms=spec.veto_window_ms,
        budgets=spec.budgets.model_dump(exclude_none=True),
        state=initial,
        run_phase=phase,
    )
    return Session(document, contract.selection.verified_score_epsilon)
