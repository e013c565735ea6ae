"""The anti-drift checks on the non-control packets of agents (docs/specification/contract.md section 7).

All checks of a mode are one compiled conjunction, memoised by the facts that it names; single checks run only when it
is false, to name the culprit.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from apc_contracts.admission.case import Case
from apc_contracts.contract.machines import DriftRule, DriftRules, FactValue
from apc_contracts.judging.verdict import Refusal
from apc_contracts.payloads.by_type import ArtifactPayload, TransferPayload
from apc_contracts.vocabulary import ALL_RECIPIENTS, ORCHESTRATOR, SUBSTRATE_RECIPIENT, PacketType

_NOBODY_IN_PARTICULAR = frozenset({ALL_RECIPIENTS, SUBSTRATE_RECIPIENT, ORCHESTRATOR})


def keeps_to_the_course(case: Case) -> Refusal | None:
    """Refuse a packet that fails an enforced check, as far as there is a session and a registry to ask."""
    drift = case.contract.drift
    if case.session is None:
        failed = _failed(case, drift.offline)
    else:
        failed = _failed(case, drift.at_barrier if case.facts.registry is None else drift.enforced)
    return failed[0] if failed else None


def warnings_of(case: Case) -> tuple[Refusal, ...]:
    """Return the failed checks of mode `warn`; none offline, for control types and for the orchestrator."""
    if case.session is None or case.facts.registry is None or case.is_from_orchestrator:
        return ()
    if case.packet.packet_type in case.contract.control_types:
        return ()
    return _failed(case, case.contract.drift.warned)


def _failed(case: Case, checks: DriftRules) -> tuple[Refusal, ...]:
    values = tuple([read(case) for read in _readers(checks)])
    return () if checks.whole.holds_values(values) else _refusals(checks, values)


@lru_cache(64)
def _readers(checks: DriftRules) -> tuple[Callable[[Case], Any], ...]:
    """Return the functions that compute the facts of the checks, in the order of their names."""
    return tuple(DRIFT_FACTS[name] for name in checks.whole.names)


@lru_cache(4096)
def _refusals(checks: DriftRules, values: tuple[FactValue, ...]) -> tuple[Refusal, ...]:
    """Return a refusal for each failed check: like the guards, a function of the facts alone."""
    facts = dict(zip(checks.whole.names, values, strict=True))
    return tuple(_refusal(rule) for rule in checks.rules if not rule.guard.holds(facts))


def _refusal(rule: DriftRule) -> Refusal:
    message = f"the anti-drift check {rule.name} failed: it needs {rule.guard.text}"
    return Refusal("DRIFT_CHECK_FAILED", rule.name, rule.path, message)


def _packet_type(case: Case) -> str:
    return case.packet.packet_type


def _phase_allows_type(case: Case) -> bool:
    return case.packet.packet_type in case.contract.policies[case.packet.run_phase].packet_types


def _has_evidence(case: Case) -> bool:
    bundle = case.packet.proof_bundle
    return bundle is not None and bool(bundle.evidence_refs)


def _has_falsifiers(case: Case) -> bool:
    bundle = case.packet.proof_bundle
    return bundle is not None and bool(bundle.falsifiers)


def _has_artifact_hash(case: Case) -> bool:
    return case.packet.packet_type is PacketType.ARTIFACT and bool(
        case.packet.payload_as(ArtifactPayload).artifact_hash
    )


def _protocol_is_deployed(case: Case) -> bool:
    return case.packet.protocol_version in case.contract.speaks


def _contract_is_deployed(case: Case) -> bool:
    return case.facts.is_contract_deployed


def _task_is_known(case: Case) -> bool:
    return case.session is not None and case.session.task_is_known(case.packet.trace.task_id)


def _root_is_known(case: Case) -> bool:
    trace = case.packet.trace
    if trace.parent_packet_id is None:
        return True
    return case.session is not None and case.session.root_is_known(trace.root_packet_id)


def _parent_is_known(case: Case) -> bool:
    trace, facts = case.packet.trace, case.facts
    if trace.parent_packet_id is None:
        return True
    if case.parent is not None:
        return case.parent.root == trace.root_packet_id
    # The orchestrator's NACK is not an entry of the session, but a handler may answer it.
    return facts.is_cause_delivered and facts.cause == trace.parent_packet_id


def _recipients_are_registered(case: Case) -> bool:
    registry = case.facts.registry or {}
    for recipient in case.packet.recipients:
        if recipient.agent_id not in registry and recipient.agent_id not in _NOBODY_IN_PARTICULAR:
            return False
    return True


def _protocol_share(case: Case) -> float:
    """Return the share of swarms that would hold the TRANSFER's protocol after it, in 0..1.

    A swarm from outside the session counts as well.
    """
    if case.session is None or case.packet.packet_type is not PacketType.TRANSFER:
        return 0.0
    payload, swarms = case.packet.payload_as(TransferPayload), case.session.swarms.keys()
    holders = case.session.protocol_holders(payload.protocol_id) | {payload.from_swarm, payload.to_swarm}
    return len(holders & swarms) / len(swarms) if swarms else 0.0


def _brings_new_symbols(case: Case) -> bool:
    session, packet = case.session, case.packet
    if session is None:
        return False
    for key in packet.symbolic_keys:
        if not session.symbolic_key_is_known(key):
            return True
    if packet.lineage is None:
        return False
    return any(not session.protocol_is_known(parent) for parent in packet.lineage.parent_protocol_ids)


DRIFT_FACTS: Mapping[str, Callable[[Case], Any]] = {
    "packet_type": _packet_type,
    "phase_allows_type": _phase_allows_type,
    "has_evidence": _has_evidence,
    "has_falsifiers": _has_falsifiers,
    "has_artifact_hash": _has_artifact_hash,
    "protocol_is_deployed": _protocol_is_deployed,
    "contract_is_deployed": _contract_is_deployed,
    "task_is_known": _task_is_known,
    "root_is_known": _root_is_known,
    "parent_is_known": _parent_is_known,
    "recipients_are_registered": _recipients_are_registered,
    "protocol_share": _protocol_share,
    "brings_new_symbols": _brings_new_symbols,
}
"""How each fact of scope `drift` is computed; a test checks that it equals the contract's list."""
