"""Agents that tests and benchmarks of the whole system script by hand, over any bus."""

from tests.support.traffic.agents import HANDLED, ScriptedAgents
from tests.support.traffic.equalities import Sent, open_deliveries, violated_equalities
from tests.support.traffic.journal import Journal
from tests.support.traffic.packets import AGENTS, RUN, SESSION, Cast, make_idea, make_packet, make_start
from tests.support.traffic.worker import ScriptedWorker, publish_until_confirmed
from tests.support.waiting import until

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
