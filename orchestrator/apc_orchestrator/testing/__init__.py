"""Agents that tests and benchmarks of the whole system script by hand, over any bus."""

from apc_orchestrator.testing.agents import HANDLED, ScriptedAgents
from apc_orchestrator.testing.equalities import Sent, open_deliveries, violated_equalities
from apc_orchestrator.testing.journal import Journal
from apc_orchestrator.testing.packets import AGENTS, RUN, SESSION, Cast, make_idea, make_packet, make_start
from apc_orchestrator.testing.worker import ScriptedWorker, publish_until_confirmed, until

__all__ = [
    "AGENTS",
    "HANDLED",
    "RUN",
    "SESSION",
    "Cast",
    "Journal",
    "ScriptedAgents",
    "ScriptedWorker",
    "Sent",
    "make_idea",
    "make_packet",
    "make_start",
    "open_deliveries",
    "publish_until_confirmed",
    "until",
    "violated_equalities",
]
