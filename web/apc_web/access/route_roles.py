"""Which role each route needs, and the route that asks for it."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from fastapi import Depends
from fastapi.routing import APIRoute

from apc_web.access.caller import AccountRole, caller, require
from apc_web.access.viewer import narrowed
from apc_web.models.model_base import ApiModel

_OPERATOR = frozenset(
    {"settle_dead", "signal_session", "answer_question", "list_chats", "begin_chat", "get_chat", "delete_chat", "say"}
    | {"stop_answer", "compress_chat", "clear_chat", "list_chat_tasks", "get_history", "get_chat_events"}
    | {"start_verification", "cancel_verification"}
)
_READER = frozenset({"get_body", "get_proof", "get_consistency", "get_verification"})
_NOBODY = frozenset({"login", "logout"})
_VIEWER = frozenset(
    {"list_runs", "get_run", "list_sessions", "get_session", "list_moves", "get_scores", "get_timeline", "get_stream"}
    | {"get_session_at", "list_packets", "get_packet", "get_tree", "get_impact", "list_arbitrations", "get_statistics"}
    | {"list_protocols", "list_dead", "list_approvals", "list_effects", "list_tasks", "list_agents", "get_about"}
    | {"list_checkpoints", "get_graph", "get_system"}
)
"""What a viewer may ask; of a model they see the columns of `viewer`, of `get_timeline` columns alone."""


def role_of(name: str) -> AccountRole | None:
    """Return the role that a route needs; None = none, it is for who is not logged in. Raises KeyError for others."""
    for role, names in {
        AccountRole.VIEWER: _VIEWER,
        AccountRole.READER: _READER,
        AccountRole.OPERATOR: _OPERATOR,
        None: _NOBODY,
    }.items():
        if name in names:
            return role
    raise KeyError(name)


class RoleRoute(APIRoute):
    """A route that asks for its role, and shows a viewer what a viewer may see."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        role = role_of(endpoint.__name__)
        if role is not None:

            async def asked() -> None:
                require(role)

            options["dependencies"] = [Depends(asked), *(options.get("dependencies") or ())]
        super().__init__(path, _narrowed(endpoint), **options)


def _narrowed(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(endpoint)
    async def shown(*arguments: Any, **named: Any) -> Any:
        if caller().role is AccountRole.VIEWER and named.get("text") is not None:
            require(AccountRole.READER)  # whether a text is found tells what the bodies hold
        answer = await endpoint(*arguments, **named)
        return narrowed(answer) if caller().role is AccountRole.VIEWER and isinstance(answer, ApiModel) else answer

    return shown
