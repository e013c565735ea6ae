"""A conversation as server-sent events: what a client has is compared with what there is, so a slow one misses nothing.

A stream begins with the whole state: a client that lost its connection needs no position.
"""

import asyncio
from collections.abc import AsyncIterator

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.responses import Response

from apc_agents.llm import Dialogue
from apc_bus.concurrency import cancelled
from apc_web.chat.chats import Chats
from apc_web.chat.message_answer import Answering
from apc_web.errors import ApiError
from apc_web.models.chat import ChatText

MOST_STREAMS = 64
_PING_SECONDS = 15


async def chat_stream(chats: Chats, user: str, session_id: str) -> Response:
    """Return the stream of a conversation. Raises ApiError."""
    dialogue = await chats.known(user, session_id)
    if chats.streams >= MOST_STREAMS:
        raise ApiError(429, "TOO_MANY", f"{MOST_STREAMS} streams are open: close one")
    return EventSourceResponse(
        _events(chats, dialogue, user, session_id),
        ping=_PING_SECONDS,
        send_timeout=30,
        headers={"Cache-Control": "no-store"},
    )


async def _events(chats: Chats, dialogue: Dialogue, user: str, session_id: str) -> AsyncIterator[ServerSentEvent]:
    chats.streams += 1
    props = asyncio.Event()
    watching = asyncio.create_task(_watch(dialogue, props))
    try:
        shown: tuple[Answering | None, int] | None = None
        text = ""
        while True:
            has_props = props.is_set()
            props.clear()
            answer = chats.answer_of(user, session_id)
            changed = asyncio.Event() if answer is None else answer.changed
            if has_props or shown != (answer, 0 if answer is None else answer.version):
                shown, text = (answer, 0 if answer is None else answer.version), "" if answer is None else answer.text
                yield _event("state", (await chats.state(user, session_id)).model_dump_json())
            elif answer is not None and answer.text != text:
                delta, text = answer.text[len(text) :], answer.text
                yield _event("text", ChatText(delta=delta).model_dump_json())
                continue
            await _either(props, changed)
    finally:
        chats.streams -= 1
        await cancelled(watching)


async def _watch(dialogue: Dialogue, changed: asyncio.Event) -> None:
    async for _ in dialogue.changes():
        changed.set()


async def _either(first: asyncio.Event, second: asyncio.Event) -> None:
    """Wait until one of two things happens."""
    waits = [asyncio.create_task(first.wait()), asyncio.create_task(second.wait())]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in waits:
            one.cancel()


def _event(name: str, data: str) -> ServerSentEvent:
    return ServerSentEvent(data, event=name)
