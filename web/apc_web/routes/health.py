"""Routes of the running system: its health, its agents."""

from typing import Annotated

from fastapi import APIRouter, Query

from apc_web.access.route_roles import RoleRoute
from apc_web.models.agents import AgentList
from apc_web.models.health import SystemHealth
from apc_web.route_services import Serving
from apc_web.running.agents import agent_list, agents_with_queues
from apc_web.running.health import system_health

router = APIRouter(tags=["system"], route_class=RoleRoute)


@router.get("/system", response_model=SystemHealth)
async def get_system(services: Serving) -> SystemHealth:
    """Return whether gates and log writers run, how far they are behind, and the alerts that fire."""
    return await system_health(services)


@router.get("/agents", response_model=AgentList)
async def list_agents(
    services: Serving,
    *,
    queues: Annotated[bool, Query(description="Look at the queues of the agents, too.")] = False,
) -> AgentList:
    """Return registered agents by name, revoked ones too."""
    return await (agents_with_queues(services) if queues else agent_list(services))
