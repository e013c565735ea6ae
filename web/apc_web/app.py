"""The ASGI application: the API under /api/v1, and the page's files under everything else."""

from pathlib import Path

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute

from apc_web.models.model_base import ProblemDocument
from apc_web.problem_details import add_failures
from apc_web.route_services import Services
from apc_web.routes import acts, chat, decisions, health, inbox, log, login, packets, sessions
from apc_web.static import PageFiles

API = "/api/v1"
STATIC = Path(__file__).parent / "static"
_PROBLEM = {"description": "A problem.", "content": {"application/problem+json": {}}, "model": ProblemDocument}
_STATUSES = (400, 401, 403, 404, 405, 409, 413, 415, 421, 422, 429, 503)


def make_app(services: Services | None, static: Path = STATIC) -> FastAPI:
    """Return the application.

    Args:
        services: connections and caches; None makes an application of which only the OpenAPI document is wanted.
        static: the folder of the built page.
    """
    app = FastAPI(
        title="apc web console",
        version="1",
        summary="Read the log of an apc system, prove it, and act on it.",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=_operation_id,
        separate_input_output_schemas=False,
    )
    app.state.services = services
    api = APIRouter(prefix=API, responses={status: dict(_PROBLEM) for status in _STATUSES})
    for module in (sessions, packets, decisions, inbox, log, health, login, chat, acts):
        api.include_router(module.router)
    app.include_router(api)
    app.mount("/", PageFiles(static))
    add_failures(app)
    return app


def _operation_id(route: APIRoute) -> str:
    return route.name
