"""What each state of a session of the coordinator `research` waits for.

Source: docs/specification/contract.md section 10, Events.
"""

from collections.abc import Callable, Mapping
from itertools import combinations

from apc_contracts.contract.contract import Contract
from apc_contracts.explanation.surroundings import Surroundings
from apc_contracts.explanation.words import Wait
from apc_contracts.session.document import SessionDocument
from apc_contracts.vocabulary import ORCHESTRATOR, Right

StateRule = Callable[[SessionDocument, Surroundings, Contract], list[Wait]]


def _live_swarms(document: SessionDocument) -> list[str]:
    return sorted(swarm for swarm in document.swarms if swarm not in document.dead_swarms)


def _session_open(document: SessionDocument, around: Surroundings, contract: Contract) -> list[Wait]:
    due = document.deadlines.get("state")
    then = "the session is HALTED (STATE_DEADLINE)"
    missing = sorted(swarm for swarm in document.swarms if swarm not in document.briefs)
    if missing:
        opener = (document.opener,)
        what = f"a TASK_IR (research brief) to {_names('swarm', missing)}"
        moves = f"A member, as a rule {document.opener}, sends a TASK_IR to an agent of each of these swarms."
        return [Wait(what, moves + around.advice(opener), _described(opener, around), due, then)]
    alike = _alike(document, contract)
    if alike:
        what = f"research briefs that differ: those of {alike[0]} and {alike[1]} share more than half of their keys"
        return [Wait(what, f"Send {alike[0]} or {alike[1]} a TASK_IR with other symbolic_keys.", (), due, then)]
    return []


def _alike(document: SessionDocument, contract: Contract) -> tuple[str, str] | None:
    for (one, keys), (other, others) in combinations(sorted(document.briefs.items()), 2):
        shared = len(set(keys) & set(others))
        if shared > contract.session.brief_overlap_limit * min(len(set(keys)), len(set(others))):
            return one, other
    return None


def _research(document: SessionDocument, around: Surroundings, contract: Contract) -> list[Wait]:
    current = document.round_state
    missing = [swarm for swarm in _live_swarms(document) if swarm not in current.ready]
    then = "it goes on without them" if current.ready else "nothing yet: one swarm at least must be ready"
    return [
        Wait(
            f"READY (SIGNAL SYNC of generation 0 to {ORCHESTRATOR}) of swarm {swarm}",
            f"Any agent of {swarm} sends SIGNAL SYNC to {ORCHESTRATOR}." + around.advice(_of(document, swarm)),
            _described(_of(document, swarm), around),
            document.deadlines.get("generation"),
            then,
        )
        for swarm in missing
    ]


def _generations(document: SessionDocument, around: Surroundings, contract: Contract) -> list[Wait]:
    current, due = document.round_state, document.deadlines.get("generation")
    place = f"the barrier of generation {document.generation}"
    waits = [
        Wait(
            f"an EVAL of swarm {swarm} for {place}",
            f"Any agent of {swarm} sends an EVAL with generation {document.generation}."
            + around.advice(_of(document, swarm)),
            _described(_of(document, swarm), around),
            due,
            "the barrier closes without it",
        )
        for swarm in _live_swarms(document)
        if swarm not in current.evaluated
    ]
    if not waits and document.verifying == 0 and not _blocking(document, around):
        waits.append(Wait(place, "It closes with the next packet, receipt or timer.", (), due, "it closes"))
    return waits


def _arbitration(document: SessionDocument, around: Surroundings, contract: Contract) -> list[Wait]:
    arbitration, due = document.round_state.arbitration, document.deadlines.get("veto")
    if arbitration is None:
        return []
    if arbitration.is_vetoed and not arbitration.is_overridden:
        deciders = _with_right(Right.DECIDE, around)
        moves = "A DECISION by right `decide`, with the VETO as parent, overrides it; else the winner is struck."
        return [
            Wait("an override of the VETO", moves, _described(deciders, around), due, "the next best is arbitrated")
        ]
    moves = "Nobody has to act: without a VETO the orchestrator approves the winner when the window ends."
    winner = f"{arbitration.candidate.swarm_id} (EVAL {arbitration.winner})"
    return [Wait(f"the end of the veto window for the winner {winner}", moves, (), due, "the winner is approved")]


def _execution(document: SessionDocument, around: Surroundings, contract: Contract) -> list[Wait]:
    execution, winner = document.round_state.execution, document.round_state.winner
    if winner is None:
        return []
    agents = _of(document, winner.swarm_id)
    what = "the ARTIFACT that it builds" if execution.artifact is None else f"its EVAL of ARTIFACT {execution.artifact}"
    moves = f"An agent of {winner.swarm_id} sends it, with run_phase EXECUTION." + around.advice(agents)
    return [_until_state(document, f"the winner {winner.swarm_id}: {what}", moves, _described(agents, around))]


def _validation(document: SessionDocument, around: Surroundings, contract: Contract) -> list[Wait]:
    execution, winner = document.round_state.execution, document.round_state.winner
    if execution.judged_by is not None:
        moves = "The gate reads the ARTIFACT's bytes; look at the artifact store and `apc doctor` if it takes long."
        return [_until_state(document, f"the verification of ARTIFACT {execution.artifact}", moves, ())]
    validators = _with_right(Right.VALIDATE, around)
    others = tuple(one for one in validators if winner is None or around.agents[one].swarm_id != winner.swarm_id)
    moves = "An agent with right `validate`, of another swarm than the winner's, sends it with the ARTIFACT as parent."
    if not others:
        moves += " No such agent is registered: `apc agent add ID … --right validate`."
    what = f"a validating EVAL of ARTIFACT {execution.artifact}"
    return [_until_state(document, what, moves + around.advice(others), _described(others, around))]


def _promotion(document: SessionDocument, around: Surroundings, contract: Contract) -> list[Wait]:
    due = document.deadlines.get("generation")
    moves = "The orchestrator sends DECISION DONE when every delivery to a live agent has ended."
    return [Wait("the deliveries of the promoted PROTOCOL", moves, (), due, "it is committed all the same")]


def _until_state(document: SessionDocument, what: str, moves: str, whom: tuple[str, ...]) -> Wait:
    return Wait(what, moves, whom, document.deadlines.get("state"), "the session is HALTED (STATE_DEADLINE)")


def _blocking(document: SessionDocument, around: Surroundings) -> bool:
    return any(one.recipient not in document.dead_agents for one in around.deliveries)


def _of(document: SessionDocument, swarm: str) -> tuple[str, ...]:
    return tuple(document.swarms.get(swarm, ()))


def _with_right(right: Right, around: Surroundings) -> tuple[str, ...]:
    return tuple(
        name
        for name, agent in around.agents.items()
        if right in agent.rights and not agent.is_revoked and name != ORCHESTRATOR
    )


def _described(agents: tuple[str, ...], around: Surroundings) -> tuple[str, ...]:
    return tuple(around.describe(agent) for agent in agents)


def _names(kind: str, names: list[str]) -> str:
    return f"{kind} {names[0]}" if len(names) == 1 else f"{kind}s {', '.join(names)}"


RESEARCH_RULES: Mapping[str, StateRule] = {
    "SESSION_OPEN": _session_open,
    "DIFFERENTIATED_RESEARCH": _research,
    "INDEPENDENT_DISCOVERY": _generations,
    "SELECTIVE_TRANSFER": _generations,
    "CONTROLLED_CONVERGENCE": _generations,
    "ARBITRATION": _arbitration,
    "EXECUTION": _execution,
    "VALIDATION": _validation,
    "PROMOTION": _promotion,
}
"""State of machine inter_agent_coordination -> what it waits for; a test compares the names with the contract."""
