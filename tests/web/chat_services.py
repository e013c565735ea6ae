"""Services of a server that has a chat and no database."""

from typing import Any, cast

from apc_contracts import load_contract
from apc_web.chats import Chats
from apc_web.route_services import Services


def services_with(chats: Chats | None, why_no_chat: str | None = None) -> Services:
    """Return services whose routes of the log fail."""
    nothing = cast(Any, None)
    return Services(
        pool=nothing,
        state=nothing,
        contract=load_contract(),
        key_of=lambda shard: None,
        feed=nothing,
        is_embedded=False,
        chats=chats,
        why_no_chat=why_no_chat,
    )
