"""What one lease of a shard works with."""

from dataclasses import dataclass

import asyncpg

from apc_bus.port import Bus, Subscription
from apc_bus.settings import OrchestratorSettings
from apc_contracts.contract.collection import Contracts
from apc_contracts.contract.contract import Contract
from apc_contracts.protocol.ledger import ProtocolLedger
from apc_orchestrator.judging.registry import Registry
from apc_orchestrator.lease import Lease
from apc_orchestrator.shard.unjudgeable import UnjudgeableTimers
from apc_orchestrator.verification import Verifier


@dataclass(frozen=True, slots=True)
class ShardResources:
    """The resources of one lease; they do not change until it ends."""

    settings: OrchestratorSettings
    contracts: Contracts
    bus: Bus
    pool: asyncpg.Pool
    inputs: Subscription
    """The shard's queue. Log batches go out on its channel, so that only its active consumer gets them confirmed."""
    lease: Lease
    registry: Registry
    protocols: ProtocolLedger
    verifier: Verifier
    unjudgeable_timers: UnjudgeableTimers

    @property
    def contract(self) -> Contract:
        """The deployment's default contract: its limits hold for all sessions."""
        return self.contracts.default
