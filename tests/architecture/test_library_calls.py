"""aio-pika and aiormq are called below `apc_bus.rabbit` alone, each await of theirs within `unasked_cancel_fails`.

They raise CancelledError in calls that nobody of ours had cancelled, and that would end a service silently. aio-pika is
the client; aiormq below it is called only where packets move in bulk (docs/decisions/0012-one-transport.md).
"""

import ast
import inspect
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import aio_pika
import aiormq
import pytest

from apc_bus.rabbit.connections import Link

ROOT = Path(__file__).parents[2]
PRODUCT = ("contracts", "bus", "log", "agents", "orchestrator", "persister", "web", "client", "doors", "cli", "apps")
EDGE = ROOT / "bus/apc_bus/rabbit"
GUARD = "unasked_cancel_fails"
LIBRARIES = ("aiormq", "aio_pika", "pamqp")
EXCEPTIONS = "aiormq.exceptions"
CLIENT = {"administration.py", "connections.py"}
"""Files that use aio-pika."""
BULK = {"connections.py", "consumer.py", "transport.py"}
"""Files that use what lies below it: the connection, the channel that moves packets, and their bytes."""
RECEIVERS = ("channel", "connection", "underlay", "queue", "exchange", "aiormq", "aio_pika")
"""Names of what the libraries make, also with a leading underscore."""


def _coroutines(of: type) -> set[str]:
    found = inspect.getmembers(of, inspect.iscoroutinefunction)
    return {name for name, _ in found if not name.startswith("_")}


OF_CHANNELS = _coroutines(aiormq.Channel) | _coroutines(aio_pika.Channel)
OF_OBJECTS = _coroutines(aio_pika.Queue) | _coroutines(aio_pika.Exchange)
AWAITED = OF_CHANNELS | OF_OBJECTS | _coroutines(aiormq.Connection) | {"connect"}
OWN_PREFIXES = ("basic", "queue", "exchange", "rpc", "tx", "declare", "initialize")
OWN_NAMES = {name for name in OF_CHANNELS if name.partition("_")[0] in OWN_PREFIXES}


def test_the_library_is_imported_below_the_edge_alone() -> None:
    assert _importers(*LIBRARIES) == set()


def test_aio_pika_is_the_client_and_aiormq_is_called_where_packets_move_in_bulk() -> None:
    """Of aiormq's exceptions aio-pika hands on a part only."""
    imported = {path.name: set(_imports(path)) for path in EDGE.rglob("*.py")}
    assert {name for name, of in imported.items() if any(one.startswith("aio_pika") for one in of)} == CLIENT
    called = {name for name, of in imported.items() if any(one.startswith("aiormq") for one in of - {EXCEPTIONS})}
    assert called == BULK


def test_connections_are_opened_through_one_subclass_of_aio_pikas() -> None:
    """Its robust one, and a channel that moves packets, are made nowhere else."""
    assert issubclass(Link, aio_pika.Connection)
    makers = {"Connection", "_Connection", "Link", "BulkChannel", "connect_robust", "RobustConnection"}
    called = {
        (path.name, _name_of(node.func))
        for path in EDGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and _name_of(node.func) in makers
    }
    assert called == {("connections.py", "_Connection"), ("connections.py", "BulkChannel")}


def test_faststream_is_imported_below_the_edge_and_for_applications_alone() -> None:
    assert _importers("faststream", "fast_depends") == {"agents/apc_agents/faststream.py"}


def _importers(*libraries: str) -> set[str]:
    """Return the files beyond the edge that import one of these."""
    return {
        str(path.relative_to(ROOT))
        for component in PRODUCT
        for path in sorted((ROOT / component).rglob("*.py"))
        if EDGE not in path.parents and any(name.partition(".")[0] in libraries for name in _imports(path))
    }


def test_every_await_of_the_library_fails_at_a_cancellation_that_nobody_asked_for() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted(EDGE.rglob("*.py"))
        for line in unguarded(path.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("async def f(channel):\n    await channel.open()", [2]),
        ("async def f(channel):\n    with unasked_cancel_fails():\n        await channel.open()", []),
        ("async def f(self):\n    await self._channel.close(timeout=1)", [2]),
        ("async def f(connection):\n    async with connection.channel() as one:\n        pass", [2]),
        ("async def f(any):\n    async with asyncio.timeout(1):\n        return await any.queue_declare('q')", [3]),
        ("async def f(link):\n    await link.close()", []),
        ("async def f(c):\n    await c.declare_queue('q', passive=True)", [2]),
        ("async def f(queue):\n    await queue.bind('e', 'k')", [2]),
        ("async def f(url):\n    return await aio_pika.connect(url)", [2]),
        ("async def _f(channel):\n    await channel.open()", [2]),
        ("async def _f(c):\n    await c.rpc()\nasync def g(c):\n    await _f(c)", [2]),
        (
            "async def _f(c):\n    await c.rpc()\n"
            "async def g(c):\n    with unasked_cancel_fails():\n        await _f(c)",
            [],
        ),
        (
            "async def _f(c):\n    await c.rpc()\nasync def _g(c):\n    await _f(c)\n"
            "async def h(c):\n    with unasked_cancel_fails():\n        await _g(c)\n    await _g(c)",
            [2],
        ),
        (
            "async def f(channel):\n    with unasked_cancel_fails():\n        task(lambda: 0)\n    await channel.rpc()",
            [4],
        ),
    ],
)
def test_awaits_beyond_the_guard_are_found(source: str, lines: list[int]) -> None:
    assert list(unguarded(source)) == lines


@dataclass
class _Function:
    is_private: bool
    awaits: list[int] = field(default_factory=list)
    """Lines of awaits of the library that stand in no guard here."""
    calls: set[str] = field(default_factory=set)
    """Functions of this module that are called outside a guard here."""


def unguarded(source: str) -> Iterator[int]:
    """Yield the lines of awaits without a guard.

    A function that others cannot call may leave it to its callers in the module, if each of them has one.
    """
    functions: dict[str, _Function] = defaultdict(lambda: _Function(is_private=False))
    called: set[str] = set()
    for name, is_private, node in _functions(ast.parse(source)):
        function = functions[name] = _Function(is_private)
        _look(node, function, called, is_guarded=False)
    exposed = {name for name, one in functions.items() if not one.is_private or name not in called}
    while more := {call for name in exposed for call in functions[name].calls if call in functions} - exposed:
        exposed |= more
    yield from sorted(line for name in exposed for line in functions[name].awaits)


def _functions(tree: ast.AST, is_private: bool = False) -> Iterator[tuple[str, bool, ast.AST]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, is_private or node.name.startswith("_"), node
        yield from _functions(node, is_private or (isinstance(node, ast.ClassDef) and node.name.startswith("_")))


def _look(node: ast.AST, function: _Function, called: set[str], *, is_guarded: bool) -> None:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        is_inside = is_guarded or (isinstance(child, ast.With) and any(map(_is_guard, child.items)))
        if isinstance(child, ast.Call):
            name = _name_of(child.func)
            called.add(name)
            if not is_guarded:
                function.calls.add(name)
        if not is_guarded and any(map(_is_of_library, _awaited(child))):
            function.awaits.append(child.lineno)  # type: ignore[attr-defined]
        _look(child, function, called, is_guarded=is_inside)


def _awaited(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.Await):
        yield node.value
    elif isinstance(node, ast.AsyncWith):
        yield from (item.context_expr for item in node.items)
    elif isinstance(node, ast.AsyncFor):
        yield node.iter


def _is_of_library(awaited: ast.expr) -> bool:
    if not isinstance(awaited, ast.Call) or not isinstance(awaited.func, ast.Attribute):
        return False
    method, receiver = awaited.func.attr, _name_of(awaited.func.value).lstrip("_")
    return method in OWN_NAMES or (method in AWAITED and receiver in RECEIVERS)


def _is_guard(item: ast.withitem) -> bool:
    return isinstance(item.context_expr, ast.Call) and _name_of(item.context_expr.func) == GUARD


def _name_of(node: ast.expr) -> str:
    """Return the last name of an expression: `channel` of `self.link.channel`."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=function):
            return _name_of(function)
        case _:
            return ""


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
