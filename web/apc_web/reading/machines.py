"""The machines of a contract, as the page draws them."""

from apc_contracts.contract.contract import Contract
from apc_web.models.runs import MachineEdge, MachineState, SessionMachine

SESSION_MACHINE = "inter_agent_coordination"
PACKET_MACHINE = "packet_lifecycle"


def machine_of(contract: Contract, name: str) -> SessionMachine:
    """Return a machine of the contract: states in its order, edges one for each state and event."""
    machine = contract.machine(name)
    states = [
        MachineState(
            name=state,
            run_phase=_phase_of(contract, state) if name == SESSION_MACHINE else None,
            is_terminal=state in machine.terminal,
        )
        for state in machine.states
    ]
    edges = [MachineEdge(event=edge.event, from_state=edge.source, to_state=edge.target) for edge in machine.edges]
    return SessionMachine(states=states, edges=edges)


def _phase_of(contract: Contract, state: str) -> str | None:
    phase = contract.phase_of(state)
    return None if phase is None else phase.value
