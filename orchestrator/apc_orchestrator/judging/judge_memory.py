"""The memory of a shard's judge: the rules, and the state of one lease."""

from dataclasses import dataclass, field

from apc_contracts.contract.collection import Contracts
from apc_contracts.contract.contract import Contract
from apc_contracts.envelope.packet import Packet
from apc_contracts.judging.outstanding import Outstanding
from apc_contracts.judging.quotas import Quotas
from apc_contracts.protocol.ledger import ProtocolLedger
from apc_contracts.session import Session
from apc_contracts.session.opening import contract_named
from apc_orchestrator.judging.registry import Registry
from apc_orchestrator.judging.sessions import Sessions
from apc_orchestrator.lease import Lease
from apc_orchestrator.tracing import Traces


@dataclass(frozen=True, slots=True)
class ShardMemory:
    """State shared by the parts of a judge. Each lease starts with a new one; all of it can be read from the log."""

    contracts: Contracts
    lease: Lease
    shards: int
    """Number of shards in the deployment."""
    operator: str
    """The broker user who may change the registry."""
    registry: Registry
    protocols: ProtocolLedger
    sessions: Sessions = field(default_factory=Sessions)
    traces: Traces = field(default_factory=Traces)
    outstanding: Outstanding = field(default_factory=Outstanding)
    """Open deliveries per sender and recipient, over all sessions of the shard."""
    quotas: Quotas = field(init=False)

    @property
    def contract(self) -> Contract:
        """The deployment's default: its limits and quotas hold for all sessions."""
        return self.contracts.default

    def contract_of(self, session: Session) -> Contract:
        """Return the contract of a session; the default when its own cannot be loaded."""
        return self.contracts.of_hash(session.document.contract_hash) or self.contracts.default

    def contract_for(self, packet: Packet) -> Contract:
        """Return the contract that judges a packet without session: the one that a START names, else the default."""
        name = contract_named(packet)
        return self.contract if name is None else self.contracts.named(name) or self.contract

    def __post_init__(self) -> None:
        object.__setattr__(self, "quotas", Quotas(self.contract.limits.quota))
