"""The parts of a packet's envelope (docs/specification/contract.md section 1)."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, Field

from apc_contracts.contract_model import Count, Fraction, Id, Model, Name, Ratio, Sha256, Uuid, broken
from apc_contracts.payloads.task_ir import FalsifierCost
from apc_contracts.vocabulary import DeliveryMode, TransferMode

MAX_TTL_MS = 86_400_000
MAX_ACK_TIMEOUT_MS = 3_600_000
MAX_RETRY_LIMIT = 10
MAX_PRIORITY = 9
MAX_SYMBOLIC_KEYS = 32


def _unique(keys: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(keys)) < len(keys):
        raise broken("", "a key is listed twice: list each key once")
    return keys


SymbolicKeys = Annotated[
    tuple[Name, ...],
    Field(max_length=MAX_SYMBOLIC_KEYS, json_schema_extra={"uniqueItems": True}),
    AfterValidator(_unique),
]


class Actor(Model):
    """The sender."""

    agent_id: Id
    role: Name
    swarm_id: Id
    dialect_id: str | None = None
    dialect_hash: str | None = None
    model_id: str | None = None
    capabilities: tuple[str, ...] | None = None


class Recipient(Model):
    """A recipient. `_all` and `_substrate` are the recipients of a BROADCAST and of a SUBSTRATE packet."""

    agent_id: Id
    role: Name | None = None
    swarm_id: Id | None = None


class Trace(Model):
    """The packet's position: its session, run and task, its ancestors, the generation and step."""

    session_id: Id
    run_id: Id
    task_id: Id
    root_packet_id: Uuid
    parent_packet_id: Uuid | None = None
    generation: Count
    step: Count
    vector_clock: Mapping[Id, Count] | None = None


class Routing(Model):
    """How the packet travels. Priority >= 5 uses the urgent queue."""

    delivery_mode: DeliveryMode
    priority: Annotated[int, Field(ge=0, le=MAX_PRIORITY)]
    ttl_ms: Annotated[int, Field(ge=1, le=MAX_TTL_MS)]
    requires_ack: bool
    ack_timeout_ms: Annotated[int, Field(ge=1, le=MAX_ACK_TIMEOUT_MS)] | None = None
    retry_limit: Annotated[int, Field(ge=0, le=MAX_RETRY_LIMIT)] | None = None


class Lineage(Model):
    """Which protocol the packet carries and where it comes from."""

    protocol_id: Name
    parent_protocol_ids: tuple[Name, ...] = ()
    ancestor_swarms: tuple[Id, ...] = ()
    cross_use_case: bool = False
    transfer_mode: TransferMode | None = None


class Falsifier(Model):
    """A test that would refute a claim."""

    id: Name
    target_claim_id: Name
    test: str
    fail_if: str
    cost: FalsifierCost


class GateScores(Model):
    """Measured gates beside a claim; all optional."""

    rtf: Fraction | None = None
    stability: Fraction | None = None
    audit: Fraction | None = None
    outcome: Fraction | None = None
    learnability: Fraction | None = None
    generalization_ratio: Ratio | None = None
    symbol_coverage: Fraction | None = None
    drift_risk: Fraction | None = None


class Endorsement(Model):
    """An agent's endorsement of a payload; `payload_hash` is the hex SHA-256 of its canonical form."""

    agent_id: Id
    payload_hash: Sha256
    signature: str | None = None


class ProofBundle(Model):
    """Why a packet may be believed."""

    evidence_refs: tuple[str, ...] = ()
    falsifiers: tuple[Falsifier, ...] = ()
    gate_scores: GateScores | None = None
    signatures: tuple[Endorsement, ...] = ()
