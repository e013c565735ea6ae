"""The memory in Postgres with 100,000 conversations: listing, retrieving and storing, as the agents' role."""

import statistics
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from random import Random

import asyncpg

from apc_minds.memory import ConversationContext, ConversationMessage, PostgresMemoryStore
from benchmarks.support.figures import Figure, Figures
from benchmarks.support.servers import Servers

CONVERSATIONS = 100_000
USERS = 500
MESSAGES = 20
BAR_MS = 20.0
CALLS = 500
FOLDED = 1_000
ROUNDS = 5
WORDS = (
    "pump valve leaks motor again please look at the spare one that came in two days before noon and tell me".split()
)


async def measure_memory(servers: Servers, figures: Figures) -> None:
    """p95 of single calls, one after the other; users have about 160 conversations each, and one has 20,000."""
    url = await servers.fresh_database()
    await _fill(url)
    pool = await asyncpg.create_pool(url, min_size=2, max_size=4, server_settings={"role": "apc_agent"})
    store, random = PostgresMemoryStore(pool), Random(2)

    def some_user() -> str:
        return f"u-{random.randrange(1, USERS)}"

    def some_session() -> str:
        return f"s-{random.randrange(CONVERSATIONS)}"

    async def store_next() -> None:
        session_id = some_session()
        kept = await store.retrieve_conversation(session_id)
        assert kept is not None
        await store.store_conversation(session_id, _user_of(session_id), kept.with_message(_message("another")))

    calls: dict[str, tuple[Callable[[], Awaitable[object]], str]] = {
        "list": (lambda: store.list_conversations_for_user(some_user()), "100 of a user's conversations"),
        "list_much": (
            lambda: store.list_conversations_for_user("u-0", 100, random.randrange(10_000)),
            "100 of 20,000, from anywhere in the first half",
        ),
        "retrieve": (lambda: store.retrieve_conversation(some_session()), f"{MESSAGES} messages"),
        "store": (store_next, "retrieve, add a message, compare and set"),
        "search": (lambda: store.search_conversations(some_user(), "pump leaks"), "in a user's conversations"),
    }
    for name, (call, note) in calls.items():
        took = await _percentile(call)
        bar = BAR_MS if name in ("list", "list_much", "retrieve") else None
        figures.add(Figure(f"memory_{name}", took, "ms", bar, 1.0 if bar else None, is_time=True, note=f"p95; {note}"))
    figures.add(
        Figure("memory_fold", await _fold(store), "ms", note=f"{FOLDED} folded turns put away; best of {ROUNDS}")
    )
    await pool.close()


async def _fold(store: PostgresMemoryStore) -> float:
    """Return what a compression of a long session costs in Postgres."""
    turns = {f"context/t{number}": "The spare pump came at two. " * 10 for number in range(FOLDED)}
    taken = []
    for number in range(ROUNDS):
        began = time.perf_counter()
        await store.store_agent_states("a-1", f"s-{number}", turns)
        taken.append(1000 * (time.perf_counter() - began))
    return min(taken)


async def _percentile(call: Callable[[], Awaitable[object]]) -> float:
    taken = []
    for _ in range(CALLS):
        began = time.perf_counter()
        assert await call() is not False
        taken.append(1000 * (time.perf_counter() - began))
    return statistics.quantiles(taken, n=20)[-1]


async def _fill(url: str) -> None:
    """Rows as the store writes them: 100 different conversations, each many times under its own ids."""
    pool = await asyncpg.create_pool(url, min_size=1, max_size=1)
    store = PostgresMemoryStore(pool)
    for number in range(100):
        random = Random(number)
        messages = tuple(_message(" ".join(random.choices(WORDS, k=40))) for _ in range(MESSAGES))
        conversation = ConversationContext(
            session_id=f"model-{number}", messages=messages, metadata={"summary": f"The pump, part {number}"}
        )
        await store.store_conversation(conversation.session_id, "models", conversation)
    await pool.execute(
        """
        insert into apc_app.conversation_history
            (session_id, user_id, conversation_data, version, owner, search, updated_at)
        select 's-' || n,
               'u-' || case when n % 5 = 0 then 0 else 1 + n % $1 end,
               jsonb_set(conversation_data, '{session_id}', to_jsonb('s-' || n)), version, owner, search,
               now() - make_interval(secs => random() * 1e7)
        from generate_series(0, $2::int - 1) n
        join apc_app.conversation_history on session_id = 'model-' || n % 100
        """,
        USERS - 1,
        CONVERSATIONS,
    )
    await pool.execute("delete from apc_app.conversation_history where user_id = 'models'")
    await pool.execute("vacuum (analyze) apc_app.conversation_history")
    await pool.close()


def _user_of(session_id: str) -> str:
    number = int(session_id.removeprefix("s-"))
    return f"u-{0 if number % 5 == 0 else 1 + number % (USERS - 1)}"


def _message(content: str) -> ConversationMessage:
    return ConversationMessage(role="user", content=content, timestamp=datetime.now(UTC), metadata={"sender_id": "u"})
