"""The orchestrator: admits every packet by contract, drives the sessions' machine, delivers what it admitted.

Promises: logged before delivered; judged once, however often it comes; a shard that is lost changes nothing.
"""

from apc_orchestrator.errors import GateError, SessionUnloadable, ShardLost
from apc_orchestrator.service import Orchestrator, serve_orchestrator
from apc_orchestrator.settings import OrchestratorSettings

__all__ = [
    "GateError",
    "Orchestrator",
    "OrchestratorSettings",
    "SessionUnloadable",
    "ShardLost",
    "serve_orchestrator",
]
