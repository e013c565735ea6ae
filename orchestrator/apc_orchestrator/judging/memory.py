"""The memory of a shard's judge: the rules, and the state of one lease."""

from dataclasses import dataclass, field

from apc_contracts.contract.contract import Contract
from apc_contracts.judging.outstanding import Outstanding
from apc_contracts.judging.quotas import Quotas
from apc_contracts.protocol.ledger import ProtocolLedger
from apc_orchestrator.judging.registry import Registry
from apc_orchestrator.judging.sessions import Sessions
from apc_orchestrator.lease import Lease
from apc_orchestrator.tracing import Traces


@dataclass(frozen=True, slots=True)
class ShardMemory:
    """State shared by the parts of a judge. Each lease starts with a new one; all of it can be read from the log."""

    contract: Contract
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "quotas", Quotas(self.contract.limits.quota))
