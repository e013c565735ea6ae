"""The chat over HTTP: its routes, and a conversation as server-sent events.

What a client has is compared with what there is, so a slow one misses nothing. A stream begins with the whole state: a
client that lost its connection needs no position.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Path, Response
from sse_starlette import EventSourceResponse, ServerSentEvent

from apc_bus.concurrency import cancelled
from apc_web.access import AccountRole, caller
from apc_web.chat_models import ChatHistory, ChatList, ChatState, ChatTasks, ChatText, NewChatMessage
from apc_web.errors import ApiError
from apc_web.roles import RoleRoute, needs
from apc_web.route_services import Serving

if TYPE_CHECKING:  # a server without the extra `llm` has these routes too
    from apc_minds.llm import Dialogue
    from apc_web.chats import Answering, Chats

MOST_STREAMS = 64
_PING_SECONDS = 15


async def chat_stream(chats: "Chats", user: str, session_id: str) -> Response:
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


async def _events(chats: "Chats", dialogue: "Dialogue", user: str, session_id: str) -> AsyncIterator[ServerSentEvent]:
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


async def _watch(dialogue: "Dialogue", changed: asyncio.Event) -> None:
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


# Routes of the chat: conversations with the agent of this server.

router = APIRouter(tags=["chat"], prefix="/chat/sessions", route_class=RoleRoute)
ChatId = Annotated[str, Path(alias="id", pattern=r"^[0-9a-zA-Z_.:-]{1,128}$", description="A conversation.")]
_EVENTS = (
    "Events `state` (ChatState) at the beginning and whenever more than the text changes, `text` (ChatText) as the "
    "response grows, and comments every 15 s. After a lost connection open it again: it begins with the state."
)


def _chats(services: Serving) -> "Chats":
    if services.chats is None:
        raise ApiError(403, "NO_CHAT", services.why_no_chat or "this server has no agent to talk to")
    return services.chats


@router.get("", response_model=ChatList)
@needs(AccountRole.OPERATOR)
async def list_chats(services: Serving) -> ChatList:
    """Return your conversations, the one that changed last first."""
    return await _chats(services).list(caller().name)


@router.post("", response_model=ChatState, status_code=201)
@needs(AccountRole.OPERATOR)
async def begin_chat(services: Serving) -> ChatState:
    """Begin a conversation."""
    return await _chats(services).begin(caller().name)


@router.get("/{id}", response_model=ChatState)
@needs(AccountRole.OPERATOR)
async def get_chat(services: Serving, chat: ChatId) -> ChatState:
    """Return a conversation: messages, pressure, and the answer that is being made."""
    return await _chats(services).state(caller().name, chat)


@router.delete("/{id}", status_code=204)
@needs(AccountRole.OPERATOR)
async def delete_chat(services: Serving, chat: ChatId) -> Response:
    """Delete a conversation."""
    await _chats(services).delete(caller().name, chat)
    return Response(status_code=204)


@router.post("/{id}/messages", response_model=ChatState, status_code=202)
@needs(AccountRole.OPERATOR)
async def say(services: Serving, chat: ChatId, message: NewChatMessage) -> ChatState:
    """Send a message; the answer comes as events, and goes on when nobody listens.

    A message whose answer failed or was stopped is not in the conversation: send it again. What the model had
    answered already is not paid for twice.
    """
    return await _chats(services).say(caller().name, chat, message.content)


@router.post("/{id}/stop", response_model=ChatState)
@needs(AccountRole.OPERATOR)
async def stop_answer(services: Serving, chat: ChatId) -> ChatState:
    """Stop the answer that is being made; the conversation is as before the message."""
    return await _chats(services).stop(caller().name, chat)


@router.post("/{id}/compress", response_model=ChatState)
@needs(AccountRole.OPERATOR)
async def compress_chat(services: Serving, chat: ChatId) -> ChatState:
    """Fold the oldest parts now."""
    return await _chats(services).compress(caller().name, chat)


@router.post("/{id}/clear", response_model=ChatState)
@needs(AccountRole.OPERATOR)
async def clear_chat(services: Serving, chat: ChatId) -> ChatState:
    """Forget everything that was said."""
    return await _chats(services).clear(caller().name, chat)


@router.get("/{id}/tasks", response_model=ChatTasks)
@needs(AccountRole.OPERATOR)
async def list_chat_tasks(services: Serving, chat: ChatId) -> ChatTasks:
    """Return the tasks that messages started."""
    return await _chats(services).tasks(caller().name, chat)


@router.get("/{id}/history", response_model=ChatHistory)
@needs(AccountRole.OPERATOR)
async def get_history(services: Serving, chat: ChatId) -> ChatHistory:
    """Return every message that is kept, folded ones too."""
    return await _chats(services).history(caller().name, chat)


@router.get(
    "/{id}/events",
    response_class=EventSourceResponse,
    responses={200: {"description": _EVENTS, "content": {"text/event-stream": {}}, "model": ChatState | ChatText}},
)
@needs(AccountRole.OPERATOR)
async def get_chat_events(services: Serving, chat: ChatId) -> Response:
    """Stream a conversation as server-sent events."""

    return await chat_stream(_chats(services), caller().name, chat)
