"""A conversation in ctx.state: durable with the handler's outcome, undone when the handler fails."""

from collections.abc import Mapping, Sequence
from typing import Final

import orjson

from apc_agents.context import ContextStale, ContextStore
from apc_agents.handler_context import HandlerContext

CONVERSATION: Final = "conversation"
"""The key in ctx.state."""


class StateContextStore:
    """The session's document in ctx.state; the turns that leave the window in an archive beside it.

    So a handler that runs again finds the conversation as it was before its packet. The archive is written at once:
    the same packet puts the same turns there.
    """

    def __init__(self, ctx: HandlerContext, archive: ContextStore) -> None:
        self._ctx = ctx
        self._archive = archive

    async def load(self, session_id: str) -> tuple[bytes, int] | None:
        """The document and its revision."""
        kept = self._ctx.state.get(CONVERSATION)
        return None if kept is None else (orjson.dumps(kept["document"]), kept["revision"])

    async def save(self, session_id: str, document: bytes, revision: int) -> int:
        """Compare and set. Raises ContextStale."""
        current = self._ctx.state.get(CONVERSATION, {}).get("revision", 0)
        if current != revision:
            raise ContextStale(session_id, revision)
        self._ctx.state[CONVERSATION] = {"document": orjson.loads(document), "revision": revision + 1}
        return revision + 1

    async def put_turns(self, session_id: str, turns: Mapping[str, bytes]) -> None:
        """Keep turns in the archive."""
        await self._archive.put_turns(session_id, turns)

    async def get_turns(self, session_id: str, resource_ids: Sequence[str]) -> Mapping[str, bytes]:
        """Those that the archive has."""
        return await self._archive.get_turns(session_id, resource_ids)

    async def delete_turns(self, session_id: str) -> None:
        """Forget them."""
        await self._archive.delete_turns(session_id)
