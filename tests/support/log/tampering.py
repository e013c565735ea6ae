"""What only a superuser can do: lift everything that guards the log. For tests of what is noticed afterwards."""

import asyncpg


async def disable_guards(pool: asyncpg.Pool) -> None:
    """Disable the event triggers, then the triggers of every table of the log."""
    async with pool.acquire() as connection:
        for (name,) in await connection.fetch("SELECT evtname FROM pg_event_trigger"):
            await connection.execute(f"ALTER EVENT TRIGGER {name} DISABLE")
        tables = """
        SELECT oid::regclass::text FROM pg_class
        WHERE relnamespace = 'apc_log'::regnamespace AND relkind IN ('r', 'p')
        """
        for (name,) in await connection.fetch(tables):
            await connection.execute(f"ALTER TABLE {name} DISABLE TRIGGER ALL")
