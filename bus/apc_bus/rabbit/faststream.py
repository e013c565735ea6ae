"""FastStream around a consumer of ours: its middlewares, and its dependencies in handlers (docs/decisions/0012).

Middlewares see each delivery before and after its handling. They cannot acknowledge it: how the handling ends decides.
This module costs half a second to import; only workers of agents with either import it.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial, wraps
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from faststream import Context, ContextRepo, Depends, apply_types
from faststream.message import StreamMessage

from apc_bus.concurrency import unasked_cancel_fails
from apc_bus.consuming import Take
from apc_bus.errors import DeadLetter
from apc_bus.port import Delivery, Message
from apc_bus.telemetry import get_logger

_log = get_logger("apc_bus")


@dataclass(frozen=True, slots=True)
class FastStreamMessage:
    """What a middleware reads of the AMQP message (`msg.raw_message`)."""

    exchange: str
    routing_key: str
    delivery_tag: int
    redelivered: bool
    type: str
    user_id: str | None
    body: bytes
    headers: dict[str, Any]
    message_id: str
    correlation_id: str | None
    content_type: str


def with_middlewares(take: Take, middlewares: Sequence[Callable[..., Any]], exchange: str) -> Take:
    """Return a `take` that runs each delivery through FastStream middlewares, the first one outermost.

    Deliveries reach `take` in the order of the queue, whatever middlewares wait for. An error of a middleware before
    the handling gives the delivery back; one after it is logged. A middleware that does not call the next one has
    dropped the packet: it becomes a dead letter, so that the orchestrator learns of it.
    """
    chain = _Chain(take, middlewares, exchange)

    def start(delivery: Delivery) -> asyncio.Future[None]:
        return asyncio.ensure_future(chain.run(delivery))

    return start


class _Chain:
    def __init__(self, take: Take, middlewares: Sequence[Callable[..., Any]], exchange: str) -> None:
        self._take = take
        self._middlewares = middlewares
        self._exchange = exchange
        self._context = ContextRepo()
        self._turn: asyncio.Future[None] | None = None
        """Ends when the last delivery that arrived has reached `take`, or has ended before."""

    async def run(self, delivery: Delivery) -> None:
        before, turn = self._turn, asyncio.get_running_loop().create_future()
        self._turn = turn
        run = _PassingDelivery(self._take, delivery, turn)
        try:
            if before is not None:
                await asyncio.wait({before})
            with unasked_cancel_fails():
                await self._pass_through(run, delivery)
        except Exception as error:
            if run.done is None:
                raise
            if error is not run.error:
                _log.warning("middleware_failed", packet_id=delivery.message.message_id, error=repr(error))
        finally:
            if not turn.done():
                turn.set_result(None)
        if run.done is None:
            raise DeadLetter("a middleware did not pass the packet on")
        # Whatever the middlewares made of it: the end of the handling decides.
        await asyncio.shield(run.done)

    async def _pass_through(self, run: "_PassingDelivery", delivery: Delivery) -> None:
        raw = _raw(delivery, self._exchange)
        message = _message_of(raw)
        async with AsyncExitStack() as stack:
            stack.enter_context(self._context.scope("message", message))
            call: Callable[[Any], Awaitable[Any]] = run.handle
            entered = []
            for make in self._middlewares:
                entered.append(await stack.enter_async_context(make(raw, context=self._context)))
            for middleware in reversed(entered):
                call = partial(middleware.consume_scope, call)
            await call(message)


class _PassingDelivery:
    """One delivery on its way through the middlewares."""

    def __init__(self, take: Take, delivery: Delivery, turn: "asyncio.Future[None]") -> None:
        self._take = take
        self._delivery = delivery
        self._turn = turn
        self.done: asyncio.Future[None] | None = None

    @property
    def error(self) -> BaseException | None:
        """What the handling raised."""
        done = self.done
        return done.exception() if done is not None and done.done() and not done.cancelled() else None

    async def handle(self, message: StreamMessage[Any]) -> None:
        """Hand the delivery over, once: a middleware that calls twice waits for the same end."""
        if self.done is None:
            self.done = self._take(self._delivery)
            self._turn.set_result(None)
        # The packet goes on being handled when only this delivery of it is lost.
        await asyncio.shield(self.done)


def _raw(delivery: Delivery, exchange: str) -> FastStreamMessage:
    message: Message = delivery.message
    return FastStreamMessage(
        exchange=exchange,
        routing_key=delivery.routing_key,
        delivery_tag=delivery.tag,
        redelivered=delivery.is_redelivered,
        type=message.type,
        user_id=message.user_id,
        body=message.body,
        headers=dict(message.headers),
        message_id=message.message_id,
        correlation_id=message.correlation_id,
        content_type=message.content_type,
    )


def _message_of(raw: FastStreamMessage) -> StreamMessage[FastStreamMessage]:
    return StreamMessage(
        raw,
        raw.body,
        headers=raw.headers,
        content_type=raw.content_type,
        correlation_id=raw.correlation_id,
        message_id=raw.message_id,
    )


# Dependencies: resolved around each call of a function, in the context of the application that runs it.

_alone = ContextRepo()
_MARKERS = (type(Depends(_alone.get)), type(Context()))

application: ContextVar[ContextRepo] = ContextVar("apc_faststream_context", default=_alone)
"""The context of the application that runs this task; an empty one without."""

Function = Callable[..., Awaitable[Any]]


def resolved(function: Function, count: int) -> Function:
    """Return a function with FastStream's dependencies as one that takes the first `count` parameters.

    Dependencies are resolved at each call, and get those parameters by their names; one that yields is closed when the
    call ends, however it ends.

    One whose other parameters are no dependencies is returned as it is.
    """
    signature = inspect.signature(function)
    own, others = list(signature.parameters.values())[:count], list(signature.parameters.values())[count:]
    hints = get_type_hints(function, include_extras=True)
    if not all(_is_dependency(parameter, hints.get(parameter.name)) for parameter in others):
        return function
    call = apply_types(function, cast=False)

    @wraps(function)
    async def handle(*given: Any) -> Any:
        return await call(*given, context__=application.get())

    handle.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
    return handle


def _is_dependency(parameter: inspect.Parameter, annotation: Any) -> bool:
    markers = (parameter.default, *(get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()))
    return any(isinstance(one, _MARKERS) for one in markers)
