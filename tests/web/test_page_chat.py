"""A conversation in a real browser: tools, pressure, and earlier parts that fold and open."""

import pytest
from tests.support.web.browser import browse, require_page, served
from tests.web.conftest import TOKEN, WebBench
from tests.web.test_chat import Scripted, make_agent

from apc_minds.memory import InMemoryMemoryStore
from apc_minds.tasks.in_memory import InMemoryTaskStore
from apc_web.access import LOCAL_USER
from apc_web.app import make_app
from apc_web.chats import Chats
from apc_web.guard import AccessGuard


@pytest.mark.page
@pytest.mark.timeout(300)
async def test_a_conversation_is_accessible_until_its_parts_fold(bench: WebBench) -> None:
    require_page()
    memory = InMemoryMemoryStore(LOCAL_USER)
    chats = Chats(make_agent(Scripted()), memory.for_owner, InMemoryTaskStore(), is_kept=False)
    object.__setattr__(bench.services, "chats", chats)
    async with served(AccessGuard(make_app(bench.services), TOKEN)) as url:
        await browse("chat.mjs", {"url": url, "token": TOKEN})
