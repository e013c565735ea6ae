"""Checkpoints and tiles of the log over HTTP (C2SP tlog-tiles), for monitors and witnesses.

`/<shard>/checkpoint` and `/<shard>/tile/<level>/<index>[.p/<width>]`; without a shard it is shard 0. Only hashes and
tree heads: entries and bodies are for readers of the database and for holders of a proof.
"""

import re

import asyncpg
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from apc_bus.database import DATABASE_AWAY
from apc_console.connections import open_log
from apc_persister.errors import TreeBroken
from apc_persister.evidence.documents import last_checkpoint
from apc_persister.evidence.merkle import TILE_WIDTH
from apc_persister.evidence.tree import Tiles
from apc_web.http import listen_address, make_server, open_listeners

_INDEX = re.compile(r"(?P<thousands>(?:x\d{3}/)*)(?P<last>\d{3})(?:\.p/(?P<width>[1-9]\d{0,2}))?")
_LEVELS = 7
"""No shard has 256 to the power of this many entries."""
_LONGEST_INDEX = 24
"""Characters: an index is below 2^53."""
_FOREVER = {"Cache-Control": "public, max-age=31536000, immutable"}
_NEVER = {"Cache-Control": "no-store"}
_NOT_THERE = PlainTextResponse("there is no such thing\n", 404, _NEVER)
_AWAY = (*DATABASE_AWAY, TreeBroken)


def make_app(pool: asyncpg.Pool) -> Starlette:
    """Return the application, over the database of the pool; it only reads."""
    routes = _TileRoutes(pool)
    paths = [("/checkpoint", routes.checkpoint), ("/tile/{level:int}/{index:path}", routes.tile)]
    return Starlette(
        routes=[Route(prefix + path, endpoint) for prefix in ("", "/{shard:int}") for path, endpoint in paths],
        exception_handlers=dict.fromkeys(_AWAY, _say_away),
    )


class _TileRoutes:
    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool

    async def checkpoint(self, request: Request) -> Response:
        """Return the newest signed checkpoint."""
        shard = _shard(request)
        if shard is None:
            return _NOT_THERE
        async with self._pool.acquire() as connection:
            note = await last_checkpoint(connection, shard)
        return _NOT_THERE if note is None else PlainTextResponse(note, headers=_NEVER)

    async def tile(self, request: Request) -> Response:
        """Return the hashes of a tile, concatenated; a partial tile as soon as it has this width."""
        shard, level = _shard(request), request.path_params["level"]
        place = _place(request.path_params["index"])
        if shard is None or level >= _LEVELS or place is None:
            return _NOT_THERE
        async with self._pool.acquire() as connection:
            tiles = await Tiles.open(connection, shard)
            index, width = place
            if (tiles.tree.size >> 8 * level) < index * TILE_WIDTH + width:
                return _NOT_THERE
            hashes = await tiles.hashes(level, index, width)
        return Response(hashes, media_type="application/octet-stream", headers=_FOREVER)


def _shard(request: Request) -> int | None:
    """Return the shard in the path; None when it is no shard number."""
    shard: int = request.path_params.get("shard", 0)
    return shard if shard < 1 << 31 else None


def _place(text: str) -> tuple[int, int] | None:
    """Return index and width of `x001/x234/067.p/8`; None when the path is not in the form of tlog-tiles."""
    found = _INDEX.fullmatch(text) if len(text.partition(".")[0]) <= _LONGEST_INDEX else None
    if found is None or found["thousands"].startswith("x000"):
        return None
    index = int(found["thousands"].replace("x", "").replace("/", "") + found["last"])
    width = int(found["width"] or TILE_WIDTH)
    return (index, width) if width < TILE_WIDTH or not found["width"] else None


async def _say_away(request: Request, error: Exception) -> Response:
    what = str(error) if isinstance(error, TreeBroken) else "the database does not answer"
    return PlainTextResponse(f"{what}\n", 503, _NEVER)


async def serve_tiles(listen: str) -> None:
    """Serve at HOST:PORT until SIGTERM or SIGINT. Raises InputUnusable, DatabaseUnavailable."""
    host, port = listen_address(listen)
    async with open_log() as pool:
        with open_listeners(host, port) as listeners:
            await make_server(make_app(pool), host, port).serve(listeners)
