"""The ASGI application: the API under /api/v1, and the page's files under everything else.

`python -m apc_web.app` writes `openapi.json`, the document of the API, for the page and for wheels.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import orjson
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.routing import BaseRoute
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from apc_web import (
    activity,
    acts,
    chat_routes,
    decisions,
    health,
    inbox,
    issues,
    log_routes,
    login,
    packets,
    search,
    sessions,
)
from apc_web.models import ProblemDocument
from apc_web.problems import add_failures
from apc_web.roles import RoleRoute
from apc_web.route_services import Services

# The files of the built page; a page that says how to build it when they are missing.

_MISSING = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>apc web console</title>
<h1>The page is not built</h1>
<p>The API answers under <code>/api/v1</code>, but this installation has no page.</p>
<p>In a checkout run <code>make page</code>, then reload. Installed wheels contain the page.</p>
</html>
"""
_FOREVER = "public, max-age=31536000, immutable"


class PageFiles:
    """Serves the files of a folder; every other path gets `index.html`, which has the page's routes.

    Names of runs and agents may hold dots: only what is below `assets/`, or is a file beside `index.html`, is a file.

    Args:
        folder: the built page.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = StaticFiles(directory=folder, check_dir=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        response = await self._response(scope)
        await response(scope, receive, send)

    async def _response(self, scope: Scope) -> Response:
        path: str = scope["path"].removeprefix("/")
        if scope["method"] not in ("GET", "HEAD"):
            raise HTTPException(405)
        if path.partition("/")[0] == "api":
            raise HTTPException(404)
        if self._is_file(path):
            response = await self._files.get_response(path, scope)
            if path.startswith("assets/") and response.status_code == 200:
                response.headers["Cache-Control"] = _FOREVER
            return response
        index = self._folder / "index.html"
        if not index.is_file():
            return HTMLResponse(_MISSING, headers={"Cache-Control": "no-store"})
        return FileResponse(index, headers={"Cache-Control": "no-cache"})

    def _is_file(self, path: str) -> bool:
        return path.startswith("assets/") or (path != "" and "/" not in path and (self._folder / path).is_file())


API = "/api/v1"
STATIC = Path(__file__).parent / "static"
ROUTERS = tuple(
    module.router
    for module in (
        *(sessions, packets, search, decisions, inbox, issues, log_routes),
        *(health, activity, login, chat_routes, acts),
    )
)
"""The routes of the API, in the order of its document."""
_PROBLEM = {"description": "A problem.", "content": {"application/problem+json": {}}, "model": ProblemDocument}
_STATUSES = (400, 401, 403, 404, 405, 409, 413, 415, 421, 422, 429, 503)


def make_app(services: Services | None, static: Path = STATIC) -> FastAPI:
    """Return the application. Raises TypeError when one of its routes asks for no role.

    Args:
        services: connections and caches; None makes an application of which only the OpenAPI document is wanted.
        static: the folder of the built page.
    """
    for router in ROUTERS:
        if not all(isinstance(route, RoleRoute) for route in router.routes):
            raise TypeError(f"the router of {router.tags} has a route that asks for no role: give it route_class")
    app = _empty_app()
    app.state.services = services
    app.router.routes.extend(_routes())
    app.mount("/", PageFiles(static))
    add_failures(app)
    return app


def _empty_app() -> FastAPI:
    return FastAPI(
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


@cache
def _routes() -> Sequence[BaseRoute]:
    """Return the routes of the API, once a process: what FastAPI works out for them takes half a second."""
    app = _empty_app()
    responses: dict[int | str, dict[str, Any]] = {status: dict(_PROBLEM) for status in _STATUSES}
    for router in ROUTERS:
        app.include_router(router, prefix=API, responses=responses)
    return app.routes


def _operation_id(route: APIRoute) -> str:
    return route.name


DOCUMENT = Path(__file__).with_name("openapi.json")


def openapi_bytes() -> bytes:
    """Return the OpenAPI 3.1 document of the API."""
    document = make_app(None).openapi()
    document["security"] = [{"bearer": []}]
    document["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
    return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


if __name__ == "__main__":
    DOCUMENT.write_bytes(openapi_bytes())
