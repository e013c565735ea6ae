"""Tools that act once: in a handler for its packet, without a bus for a name that the program chooses.

A tool is a function that some framework calls with arguments of a model. What it is called with names its effect: the
same call is made once, in whichever run of the handler or of the program it comes again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from datetime import timedelta
from functools import wraps
from hashlib import sha256
from inspect import Signature, iscoroutinefunction, signature
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, cast, overload

import orjson
from pydantic import JsonValue

from apc_agents.effect_maker import NOT_MADE, EffectMaker
from apc_agents.effects import EffectError, EffectStore, PostgresEffectStore, Scope
from apc_agents.errors import AgentError, AgentInvalid, ValueUnserialisable
from apc_agents.json_values import result_value

if TYPE_CHECKING:
    from apc_agents.handling.handler_context import HandlerContext

ParamsT = ParamSpec("ParamsT")
ResultT = TypeVar("ResultT")
ToolT = TypeVar("ToolT", bound=Callable[..., Any])

OWNER: Final = "tools"
"""Whose effects those without a bus are, in their store."""
LEASE: Final = timedelta(seconds=15)
"""How long a claim stands without a sign of life of the process that made it, without a bus."""
POLL: Final = timedelta(seconds=1)
LASTS: Final = timedelta(days=30)
"""How long the effects of a named scope are kept before the store may forget them."""
_MAX_NAME: Final = 100

_handler: ContextVar["HandlerContext | None"] = ContextVar("apc_handler", default=None)


@contextmanager
def tools_act_for(ctx: "HandlerContext") -> Iterator[None]:
    """Let tools within act for this run of a handler, in its task and those that it starts."""
    token = _handler.set(ctx)
    try:
        yield
    finally:
        _handler.reset(token)


def current_handler() -> "HandlerContext | None":
    """Return the context of the handler that runs here; None outside of one."""
    return _handler.get()


@overload
def once(tool: ToolT, /) -> ToolT: ...


@overload
def once(
    store: EffectStore | None = None,
    /,
    *,
    scope: str | Callable[[], str] | None = None,
    key: Callable[..., str] | None = None,
    name: str | None = None,
    not_made: tuple[type[Exception], ...] = (),
    lease: timedelta = LEASE,
) -> Callable[[ToolT], ToolT]: ...


def once(
    given: Any = None,
    /,
    *,
    scope: str | Callable[[], str] | None = None,
    key: Callable[..., str] | None = None,
    name: str | None = None,
    not_made: tuple[type[Exception], ...] = (),
    lease: timedelta = LEASE,
) -> Any:
    """Make a tool whose effect happens once for each call with the same arguments; it returns JSON, as `ctx.once`.

    In a handler the effect belongs to the handled packet, with a store to the scope. What a plain function does, it
    does in a thread. A tool that raises leaves its effect unknown; where a framework hides that, the handler fails.

    ```python
    @once
    async def pay(order: str) -> str:
        return f"receipt of {order}"


    @desk.on(Question)
    async def act(question: Question, ctx: HandlerContext) -> Answer:
        await pay("o-7")
        return Answer(text=await pay(order="o-7"))  # the same call: not paid again


    async with AgentTestClient(desk) as client:
        assert content_of(await client.send(Question(text="pay")), Answer).text == "receipt of o-7"
        assert len(await client.effects.list()) == 1
    ```

    Args:
        given: the tool, or the store of tools without a bus.
        scope: with a store: the id of a run, or a function that returns it; the same when the program runs again.
        key: returns the text that names a call, from its arguments; default the arguments, if they are JSON.
        name: of the tool among those of the handler; default its qualified name.
        not_made: exceptions of the tool which prove that nothing has happened, as EffectNotMade does.
        lease: with a store: how long a claim stands without a sign of life of its process.

    Raises:
        AgentInvalid: a store without a scope, or a scope without a store.
    """
    if given is not None and callable(given):
        return _Tool(given, _InHandler(), key, name, not_made).wrapped()
    if (given is None) is not (scope is None):
        raise AgentInvalid("once(store, scope=...): give both, or neither for tools of a handler")
    place = _InHandler() if given is None else _WithStore(given, scope or "", lease)
    return lambda tool: _Tool(tool, place, key, name, not_made).wrapped()


class _Tool:
    """A function, and how its calls are named."""

    def __init__(
        self,
        function: Callable[..., Any],
        place: "_InHandler | _WithStore",
        key: Callable[..., str] | None,
        name: str | None,
        not_made: tuple[type[Exception], ...],
    ) -> None:
        qualified = getattr(function, "__qualname__", type(function).__qualname__)
        self.function = function
        self.name = (name or qualified.rpartition("<locals>.")[2])[:_MAX_NAME]
        self.not_made = not_made
        self._place = place
        self._key = key
        self._signature: Signature = signature(function)

    def wrapped(self) -> Callable[..., Any]:
        """Return what a framework is given: it looks like the function."""
        place, function = self._place, self.function

        if iscoroutinefunction(function):

            @wraps(function)
            async def act(*args: Any, **kwargs: Any) -> JsonValue:
                return await place.act(self, self.key_of(args, kwargs), lambda: function(*args, **kwargs))

            return act

        @wraps(function)
        def act_in_thread(*args: Any, **kwargs: Any) -> JsonValue:
            return place.act_in_thread(self, self.key_of(args, kwargs), lambda: function(*args, **kwargs))

        return act_in_thread

    def key_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return the key of a call. Raises AgentError, and TypeError for arguments that do not fit."""
        called = self._signature.bind(*args, **kwargs)
        called.apply_defaults()
        if self._key is not None:
            said: Any = self._key(*args, **kwargs)
            if not isinstance(said, str):
                raise AgentError(f"once(key=...) of {self.name} returned {type(said).__name__}: return a text")
        else:
            try:
                said = {name: result_value(value) for name, value in called.arguments.items()}
            except ValueUnserialisable as error:
                raise AgentError(
                    f"the arguments of {self.name} do not name its effect: {error}. Give once(key=...), a function of "
                    "the arguments that returns a text"
                ) from error
        digest = sha256(orjson.dumps(said, option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]
        return f"tool/{self.name}/{digest}"


Make = Callable[[], Any]


class _InHandler:
    """Acts for the handler that runs."""

    async def act(self, tool: _Tool, key: str, make: Make) -> JsonValue:
        """Make the effect of a call, in the loop of the handler."""
        ctx, loop = self._found(tool)
        work = _once_in(ctx, tool, key, _as_coroutine(make))
        if asyncio.get_running_loop() is loop:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))

    def act_in_thread(self, tool: _Tool, key: str, make: Make) -> JsonValue:
        """Make the effect of a call, and block this thread meanwhile."""
        ctx, loop = self._found(tool)
        if _running_loop() is loop:
            raise AgentError(
                f"the tool {tool.name} blocks, and is called on the event loop of its handler: make it `async def`, "
                "or let the framework run in a thread: await asyncio.to_thread(...)"
            )
        return asyncio.run_coroutine_threadsafe(_once_in(ctx, tool, key, make), loop).result()

    def _found(self, tool: _Tool) -> "tuple[HandlerContext, asyncio.AbstractEventLoop]":
        ctx = current_handler()
        if ctx is None or ctx.task is None:
            raise AgentError(
                f"the tool {tool.name} acts once for the packet of a handler, and no handler runs here: give "
                "once(store, scope=...), or, for a thread of your own, run it in contextvars.copy_context()"
            )
        return ctx, ctx.task.get_loop()


async def _once_in(ctx: "HandlerContext", tool: _Tool, key: str, make: Make) -> JsonValue:
    """Make an effect of the handler, and keep what needs somebody's word."""
    harmless: tuple[type[Exception], ...] = (*NOT_MADE, *tool.not_made)
    try:
        made = await ctx.once(key, make, not_made=tool.not_made)
    except EffectError as error:
        ctx.tool_failures.setdefault(key, error)
        raise
    except harmless:
        raise
    except Exception:
        if (failure := await ctx.resources.effects.unsettled(ctx.effect_scope, key)) is not None:
            ctx.tool_failures.setdefault(key, failure)
        raise
    ctx.tool_failures.pop(key, None)
    return made


class _WithStore:
    """Acts for a scope with a name, in a store of the program."""

    def __init__(self, store: EffectStore, scope: str | Callable[[], str], lease: timedelta) -> None:
        self._is_of_one_loop = isinstance(store, PostgresEffectStore)
        self._scope = scope
        self._effects = EffectMaker(store, OWNER, lease=lease, poll=POLL, retention=timedelta(0))

    async def act(self, tool: _Tool, key: str, make: Make) -> JsonValue:
        """Make the effect of a call."""
        return await self._once(tool, key, _as_coroutine(make))

    def act_in_thread(self, tool: _Tool, key: str, make: Make) -> JsonValue:
        """Make the effect of a call, and block this thread meanwhile."""
        if self._is_of_one_loop:
            raise AgentError(
                f"the tool {tool.name} blocks, and the connections of its store belong to one event loop: make it "
                "`async def`, or give a SQLiteEffectStore"
            )
        if _running_loop() is None:
            return asyncio.run(self._once(tool, key, make))
        return _in_another_thread(lambda: asyncio.run(self._once(tool, key, make)))

    async def _once(self, tool: _Tool, key: str, make: Make) -> JsonValue:
        name = self._scope() if callable(self._scope) else self._scope
        return await self._effects.once(Scope.named(name, OWNER, LASTS), key, make, tool.not_made)


def _as_coroutine(make: Make) -> Callable[[], Coroutine[Any, Any, Any]]:
    """Return a coroutine function, which is not run in a thread."""

    async def made() -> Any:
        return await cast(Awaitable[Any], make())

    return made


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _in_another_thread(work: Callable[[], ResultT]) -> ResultT:
    """Run this where no loop runs, and wait for it."""
    ended: list[ResultT | BaseException] = []
    context = copy_context()

    def run() -> None:
        try:
            ended.append(context.run(work))
        except BaseException as error:
            ended.append(error)

    thread = Thread(target=run, name="apc-once")
    thread.start()
    thread.join()
    (end,) = ended
    if isinstance(end, BaseException):
        raise end
    return end
