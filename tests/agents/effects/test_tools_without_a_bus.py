"""Tools in a program without a bus: threads, processes and kill -9 over one SQLite file."""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.account import ACCOUNT

from apc_agents import EffectUnknown, SQLiteEffectStore, once
from apc_agents.effects import EffectState, PostgresEffectStore
from apc_agents.errors import AgentError, StateUnavailable
from apc_bus.database import open_pool

SCRIPT = Path(__file__).parent / "paying_script.py"
ROOT = Path(__file__).parents[3]


class Program:
    """The paying program, its file and its payments."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = SQLiteEffectStore(folder / "effects.db")

    async def begin(self, *orders: str, **environment: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, str(SCRIPT), str(self.folder / "effects.db"), *orders,
            env={**os.environ, ACCOUNT: str(self.folder), "PYTHONPATH": str(ROOT), **environment},
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip

    async def run(self, *orders: str) -> str:
        """Run to the end; return what it has printed."""
        process = await self.begin(*orders)
        output, _ = await process.communicate()
        assert process.returncode == 0
        return output.decode().strip()

    async def dies_at(self, point: str) -> None:
        process = await self.begin("o-1", APC_CRASH_AT=point)
        await process.communicate()
        assert process.returncode == -signal.SIGKILL, f"not exercised: it never came to {point}"

    @property
    def payments(self) -> list[str]:
        file = self.folder / "payments"
        return file.read_text().splitlines() if file.exists() else []


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    program = Program(tmp_path)
    yield program
    program.store.close()


@pytest.mark.parametrize("point", ["worker.before_effect_claim", "worker.after_effect_record"])
async def test_a_kill_before_the_claim_and_after_the_record_mends_itself(program: Program, point: str) -> None:
    await program.dies_at(point)
    assert await program.run("o-1") == "{'receipt': 1}"
    assert program.payments == ["o-1"]


@pytest.mark.long
@pytest.mark.parametrize(("point", "paid"), [("worker.after_effect_claim", 0), ("worker.after_effect", 1)])
async def test_a_kill_in_between_is_unknown_until_it_is_settled(program: Program, point: str, paid: int) -> None:
    await program.dies_at(point)
    for _ in range(2):
        assert await program.run("o-1") == "EffectUnknown"
    assert len(program.payments) == paid
    (unknown,) = await program.store.list(states=[EffectState.UNKNOWN])
    assert unknown.session_id == "run-17"
    if paid:
        await program.store.settle(unknown.effect_id, {"receipt": 1}, "ida")
    else:
        await program.store.release(unknown.effect_id)
    assert await program.run("o-1") == "{'receipt': 1}"
    assert program.payments == ["o-1"]


@pytest.mark.long
async def test_many_processes_and_threads_pay_once(program: Program) -> None:
    """The file is new to all of them: they make it at once, too."""
    program.store.close()
    (program.folder / "effects.db").unlink()
    processes = [await program.begin("o-1", "o-2") for _ in range(6)]
    outputs = [(await one.communicate())[0].decode().strip() for one in processes]
    assert len(set(outputs)) == 1 and "EffectUnknown" not in outputs[0]
    assert sorted(program.payments) == ["o-1", "o-2"]


async def test_a_plain_tool_may_be_called_where_a_loop_runs(program: Program) -> None:
    paid: list[str] = []

    @once(program.store, scope="run-1")
    def pay(order: str) -> str:
        paid.append(order)
        if order == "b":
            raise TimeoutError
        return order

    assert [pay("a"), await asyncio.to_thread(pay, "a")] == ["a", "a"]
    with pytest.raises(TimeoutError):
        pay("b")
    with pytest.raises(EffectUnknown, match=r"store\.settle\(error\.effect_id, result, by\)"):
        pay("b")
    assert paid == ["a", "b"]


def test_a_file_that_is_something_else_is_refused(tmp_path: Path) -> None:
    (text := tmp_path / "text.db").write_text("no database, but long enough to be taken for a header of one " * 4)
    with pytest.raises(AgentError, match="is no effect store"):
        SQLiteEffectStore(text)
    with pytest.raises(AgentError, match="must be a regular file"):
        SQLiteEffectStore(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(AgentError, match="cannot be made"):
        SQLiteEffectStore(tmp_path / "file" / "effects.db")
    import sqlite3

    with sqlite3.connect(other := tmp_path / "other.db") as connection:
        connection.execute("CREATE TABLE t (x)")
    connection.close()
    with pytest.raises(AgentError, match="it is something else"):
        SQLiteEffectStore(other)
    SQLiteEffectStore(later := tmp_path / "later.db").close()
    with sqlite3.connect(later) as connection:
        connection.execute("PRAGMA user_version = 2")
    connection.close()
    with pytest.raises(AgentError, match="of version 2, and this is 1"):
        SQLiteEffectStore(later)


async def test_a_store_whose_disk_does_not_answer_says_so(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    import sqlite3

    await program.store.list()
    with sqlite3.connect(program.folder / "effects.db") as connection:
        connection.execute("DROP TABLE effects")
    connection.close()
    with pytest.raises(StateUnavailable, match=r"the effect store .* does not answer: no such table"):
        await program.store.list()


@pytest.mark.postgres
async def test_a_plain_tool_cannot_have_connections_of_a_loop(app_database_url: str) -> None:
    pool = await open_pool(app_database_url, max_size=1)
    paid: list[str] = []

    @once(PostgresEffectStore(pool), scope="run-1")
    def blocking(order: str) -> None: ...

    @once(PostgresEffectStore(pool), scope="run-1")
    async def pay(order: str) -> str:
        paid.append(order)
        return order

    with pytest.raises(AgentError, match="belong to one event loop"):
        blocking("a")
    assert [await pay("a"), await pay("a")] == ["a", "a"] and paid == ["a"]
    await pool.close()
