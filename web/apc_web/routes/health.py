"""The route of the system's health."""

from fastapi import APIRouter

from apc_web.access.route_roles import RoleRoute
from apc_web.models.health import SystemHealth
from apc_web.reading.health import system_health
from apc_web.route_services import Serving

router = APIRouter(tags=["system"], route_class=RoleRoute)


@router.get("/system", response_model=SystemHealth)
async def get_system(services: Serving) -> SystemHealth:
    """Return whether gates and log writers run, how far they are behind, and the alerts that fire."""
    return await system_health(services)
