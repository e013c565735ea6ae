"""Routes of the chat: conversations with the agent of this server."""

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Path, Response
from sse_starlette import EventSourceResponse

from apc_web.access.caller import caller
from apc_web.access.route_roles import RoleRoute
from apc_web.errors import ApiError
from apc_web.models.chat import ChatHistory, ChatList, ChatState, ChatTasks, ChatText, NewChatMessage
from apc_web.route_services import Serving

if TYPE_CHECKING:
    from apc_web.chat.chats import Chats

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
async def list_chats(services: Serving) -> ChatList:
    """Return your conversations, the one that changed last first."""
    return await _chats(services).list(caller().name)


@router.post("", response_model=ChatState, status_code=201)
async def begin_chat(services: Serving) -> ChatState:
    """Begin a conversation."""
    return await _chats(services).begin(caller().name)


@router.get("/{id}", response_model=ChatState)
async def get_chat(services: Serving, chat: ChatId) -> ChatState:
    """Return a conversation: messages, pressure, and the answer that is being made."""
    return await _chats(services).state(caller().name, chat)


@router.delete("/{id}", status_code=204)
async def delete_chat(services: Serving, chat: ChatId) -> Response:
    """Delete a conversation."""
    await _chats(services).delete(caller().name, chat)
    return Response(status_code=204)


@router.post("/{id}/messages", response_model=ChatState, status_code=202)
async def say(services: Serving, chat: ChatId, message: NewChatMessage) -> ChatState:
    """Send a message; the answer comes as events, and goes on when nobody listens.

    A message whose answer failed or was stopped is not in the conversation: send it again. What the model had
    answered already is not paid for twice.
    """
    return await _chats(services).say(caller().name, chat, message.content)


@router.post("/{id}/stop", response_model=ChatState)
async def stop_answer(services: Serving, chat: ChatId) -> ChatState:
    """Stop the answer that is being made; the conversation is as before the message."""
    return await _chats(services).stop(caller().name, chat)


@router.post("/{id}/compress", response_model=ChatState)
async def compress_chat(services: Serving, chat: ChatId) -> ChatState:
    """Fold the oldest parts now."""
    return await _chats(services).compress(caller().name, chat)


@router.post("/{id}/clear", response_model=ChatState)
async def clear_chat(services: Serving, chat: ChatId) -> ChatState:
    """Forget everything that was said."""
    return await _chats(services).clear(caller().name, chat)


@router.get("/{id}/tasks", response_model=ChatTasks)
async def list_chat_tasks(services: Serving, chat: ChatId) -> ChatTasks:
    """Return the tasks that messages started."""
    return await _chats(services).tasks(caller().name, chat)


@router.get("/{id}/history", response_model=ChatHistory)
async def get_history(services: Serving, chat: ChatId) -> ChatHistory:
    """Return every message that is kept, folded ones too."""
    return await _chats(services).history(caller().name, chat)


@router.get(
    "/{id}/events",
    response_class=EventSourceResponse,
    responses={200: {"description": _EVENTS, "content": {"text/event-stream": {}}, "model": ChatState | ChatText}},
)
async def get_chat_events(services: Serving, chat: ChatId) -> Response:
    """Stream a conversation as server-sent events."""
    from apc_web.chat.streaming import chat_stream

    return await chat_stream(_chats(services), caller().name, chat)
