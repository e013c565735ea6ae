"""The files of the built page; a page that says how to build it when they are missing."""

from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

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
