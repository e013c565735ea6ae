"""Rules of apc/1.1: the contract that a START names, and who may do what in a session of the coordinator `task`."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from apc_contracts.admission.case import Case
from apc_contracts.contract.coordinators import Coordinator
from apc_contracts.identity.registry import Kind, Registration
from apc_contracts.judging.session_view import TaskPlaces
from apc_contracts.judging.verdict import Refusal
from apc_contracts.payloads.by_type import DecisionPayload, SignalFields
from apc_contracts.payloads.session_signals import ROLE_PREFIX, SessionSpec, TaskSessionSpec
from apc_contracts.vocabulary import PROTOCOL_1_1, PROTOCOL_VERSION, CommitmentLevel, PacketType, Signal

Places = Mapping[str, list[str]]
_ADVICE = {
    "unknown": "is not registered: register it with `apc agent add`",
    "revoked": "was revoked: register it again with `apc agent add`",
    "old": (
        "does not speak the session's version {version}: when its code reads such packets, register it again with "
        "`apc agent add MODULE:AGENT`, or with --speaks apc/1.0,{version}"
    ),
    "deaf": "reviews and does not handle DECISION: register it with that packet type",
}


def contract_is_known(case: Case) -> Refusal | None:
    """Refuse a START that names no contract of this deployment, or one for another kind of session."""
    session = _spec(case)
    if session is None:
        return None
    coordinator = case.contract.coordinator
    if not case.facts.is_contract_known:
        message = f"there is no contract {session.contract!r} here: register its file with `apc contract register`"
        return Refusal("UNKNOWN_CONTRACT", "contract_is_known", "payload.session.contract", message)
    if isinstance(session, TaskSessionSpec) == (coordinator is Coordinator.TASK):
        return None
    takes = "contract and members, no swarms" if coordinator is Coordinator.TASK else "swarms and generation_limit"
    message = f"contract {case.contract.name} has the coordinator {coordinator}: give {takes}"
    return Refusal("UNKNOWN_CONTRACT", "contract_is_known", "payload.session", message)


def members_are_ready(case: Case) -> Refusal | None:
    """Refuse a START of apc/1.1 with members that are not registered, lack its version, or review and hear nothing."""
    spec = _spec(case)
    if spec is None or case.packet.protocol_version == PROTOCOL_VERSION:
        return None
    for agent_id, (why, *similar) in unready_members(case).items():
        advice = _ADVICE[why].replace("{version}", _version(spec))
        message = f"{agent_id} {advice}{'; similar: ' + ', '.join(similar) if similar else ''}"
        return Refusal("UNROUTABLE", "members_are_ready", _path_of(spec, agent_id), message)
    return None


def places_are_filled(case: Case) -> Refusal | None:
    """Refuse a TaskSessionSpec whose deciders or reviewers are no members, or are too few."""
    spec = _spec(case)
    if not isinstance(spec, TaskSessionSpec):
        return None
    here = {*spec.members, case.sender_id}
    for field in ("deciders", "reviewers"):
        for index, name in enumerate(getattr(spec, field)):
            if not name.startswith(ROLE_PREFIX) and name not in here:
                message = f"{name} is no member: name it in members"
                return _refused("places_are_filled", f"payload.session.{field}[{index}]", message)
    places = places_of(case)
    if not places["deciders"]:
        message = "no member has these roles, so nobody could end the work: name members"
        return _refused("places_are_filled", "payload.session.deciders", message)
    if spec.reviewers and len(places["reviewers"]) < spec.approvals:
        reviewers = ", ".join(places["reviewers"]) or "nobody"
        message = f"{spec.approvals} approvals are needed, and without the deciders only {reviewers} reviews: name more"
        return _refused("places_are_filled", "payload.session.reviewers", message)
    return None


def may_finish(case: Case) -> Refusal | None:
    """Refuse a DONE that is not a decider's, or not the time for it, and an approval that would not count."""
    session, held = case.session, _task_places(case)
    if session is None or held is None:
        return None
    level = case.packet.payload_as(DecisionPayload).commitment_level
    path = "payload.commitment_level"
    if level is CommitmentLevel.DONE:
        if not held.is_decider:
            return _refused("may_finish", path, f"{case.sender_id} does not decide here: a decider sends DONE")
        if session.state != "WORKING":
            return _refused("may_finish", path, f"DONE ends the state WORKING, and the session is in {session.state}")
    elif level is CommitmentLevel.APPROVED and session.state == "REVIEW":
        return _answers_the_done(case, held, "an approval")
    return None


def may_object(case: Case) -> Refusal | None:
    """Refuse a VETO that is not a reviewer's on the DONE under review."""
    session, held = case.session, _task_places(case)
    if session is None or held is None or case.packet.payload_as(SignalFields).signal is not Signal.VETO:
        return None
    if session.state != "REVIEW":
        return _refused("may_object", "payload.signal", f"nothing is under review: the session is in {session.state}")
    return _answers_the_done(case, held, "a VETO")


def places_of(case: Case) -> Places:
    """Return the agents that decide and review in the session that a START opens."""
    if case.facts.places is not None:
        return case.facts.places
    spec = _spec(case)
    assert isinstance(spec, TaskSessionSpec)
    return resolve_places(spec, case.sender_id, case.facts.registry or {})


def resolve_places(spec: TaskSessionSpec, opener: str, registry: Mapping[str, Registration]) -> dict[str, list[str]]:
    """Return deciders and reviewers as agent ids; a reviewer who decides is left out."""
    deciders = _resolved(spec.deciders or (opener,), spec, registry)
    reviewers = [one for one in _resolved(spec.reviewers, spec, registry) if one not in deciders]
    return {"deciders": deciders, "reviewers": reviewers}


def unready_members(case: Case) -> Mapping[str, list[str]]:
    """Return the members of a START that cannot take part: why, and ids similar to the first unknown one."""
    if case.facts.unready is not None:
        return case.facts.unready
    spec, registry = _spec(case), case.facts.registry or {}
    reviewers = places_of(case)["reviewers"] if isinstance(spec, TaskSessionSpec) else ()
    unready: dict[str, list[str]] = {}
    for agent_id in _members(spec):
        known = registry.get(agent_id)
        if known is None:
            unready[agent_id] = ["unknown", *(_similar(agent_id, registry) if not unready else ())]
        elif known.is_revoked:
            unready[agent_id] = ["revoked"]
        elif known.kind is Kind.AGENT and _version(spec) not in known.speaks:
            unready[agent_id] = ["old"]
        elif agent_id in reviewers and PacketType.DECISION not in known.handles:
            unready[agent_id] = ["deaf"]
    return unready


def _resolved(names: Iterable[str], spec: TaskSessionSpec, registry: Mapping[str, Registration]) -> list[str]:
    members: dict[str, None] = {}
    for name in names:
        role = name.removeprefix(ROLE_PREFIX)
        if role == name:
            members[name] = None
            continue
        having = (agent for agent in spec.members if agent in registry and registry[agent].role == role)
        members.update(dict.fromkeys(having))
    return list(members)


def _members(spec: SessionSpec | TaskSessionSpec | None) -> tuple[str, ...]:
    if spec is None:
        return ()
    swarms = () if isinstance(spec, TaskSessionSpec) else spec.swarms
    return (*(agent for swarm in swarms for agent in swarm.agents), *spec.members)


def _version(spec: SessionSpec | TaskSessionSpec | None) -> str:
    """Return the version of the orchestrator's packets in the session: research sessions emit apc/1.0 only."""
    return PROTOCOL_1_1 if isinstance(spec, TaskSessionSpec) else PROTOCOL_VERSION


def _path_of(spec: SessionSpec | TaskSessionSpec, agent_id: str) -> str:
    if agent_id in spec.members:
        return f"payload.session.members[{spec.members.index(agent_id)}]"
    return "payload.session.swarms"


def _similar(agent_id: str, registry: Mapping[str, Registration]) -> list[str]:
    return get_close_matches(agent_id, sorted(registry), 3)


def _spec(case: Case) -> SessionSpec | TaskSessionSpec | None:
    """Return the spec of a START that would open a session."""
    if case.session is not None:
        return None
    payload = case.packet.payload_as(SignalFields)
    if payload.signal is not Signal.START:
        return None
    return payload.session if isinstance(payload.session, SessionSpec | TaskSessionSpec) else None


def _task_places(case: Case) -> TaskPlaces | None:
    return None if case.session is None else case.session.task_places_of(case.sender_id)


def _answers_the_done(case: Case, held: TaskPlaces, what: str) -> Refusal | None:
    if not held.is_reviewer:
        message = f"{case.sender_id} does not review here: a reviewer sends {what}"
        return _refused("answers_the_done", "sender.agent_id", message)
    if case.packet.trace.parent_packet_id == held.done:
        return None
    message = f"{what} answers the DONE under review: name {held.done} as its parent"
    return _refused("answers_the_done", "trace.parent_packet_id", message)


def _refused(rule: str, path: str, message: str) -> Refusal:
    return Refusal("NOT_AUTHORIZED", rule, path, message)
