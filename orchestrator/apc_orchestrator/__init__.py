"""The orchestrator: admits every packet by contract, drives the sessions' machine, delivers what it admitted.

Promises: logged before delivered; judged once, however often a packet arrives; losing a shard changes nothing.
"""

from apc_bus.settings import OrchestratorSettings
from apc_orchestrator.errors import GateError, SessionUnloadable, ShardLost
from apc_orchestrator.service import Orchestrator, serve_orchestrator

__all__ = [
    "GateError",
    "Orchestrator",
    "OrchestratorSettings",
    "SessionUnloadable",
    "ShardLost",
    "serve_orchestrator",
]
