"""Routes of arbitrations and protocols."""

from fastapi import APIRouter

from apc_web.access.route_roles import RoleRoute
from apc_web.models.decisions import ArbitrationPage, ArbitrationStatistics, ProtocolList
from apc_web.parameters import After, Limit, OfRun, OfSession, OfTask
from apc_web.reading import decisions
from apc_web.route_services import Serving

router = APIRouter(tags=["decisions"], route_class=RoleRoute)


@router.get("/arbitrations", response_model=ArbitrationPage)
async def list_arbitrations(
    services: Serving,
    run_id: OfRun = None,
    session_id: OfSession = None,
    task_id: OfTask = None,
    after: After = None,
    limit: Limit = 50,
) -> ArbitrationPage:
    """Return arbitrations with their candidates, newest first."""
    given = {"run_id": run_id, "session_id": session_id, "task_id": task_id}
    return await decisions.arbitrations_page(services.pool, given, after, limit)


@router.get("/arbitrations/stats", response_model=ArbitrationStatistics)
async def get_statistics(
    services: Serving, run_id: OfRun = None, session_id: OfSession = None, task_id: OfTask = None
) -> ArbitrationStatistics:
    """Return figures over arbitrations, by swarm, protocol, code, generation and run."""
    given = {"run_id": run_id, "session_id": session_id, "task_id": task_id}
    return await decisions.statistics(services.pool, given)


@router.get("/protocols", response_model=ProtocolList)
async def list_protocols(services: Serving, run_id: OfRun = None, limit: Limit = 100) -> ProtocolList:
    """Return protocols with effectiveness and blocks, the most transferred first."""
    return await decisions.protocol_list(services, run_id, limit)
