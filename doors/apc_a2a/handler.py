"""Answers the requests of A2A clients: each reads the log as the caller's client, and writes through the gate alone."""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, NamedTuple
from uuid import UUID, uuid5

import asyncpg
from a2a.server.context import ServerCallContext
from a2a.server.events import Event
from a2a.server.request_handlers.request_handler import RequestHandler, validate_request_params
from a2a.types.a2a_pb2 import (
    AgentCard,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    ListTasksRequest,
    ListTasksResponse,
    Message,
    Part,
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
    TaskPushNotificationConfig,
    TaskState,
)
from a2a.utils.errors import (
    A2AError,
    ContentTypeNotSupportedError,
    InternalError,
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from a2a.utils.input_mode_validator import validate_input_modes
from a2a.utils.task import (
    ListTasksCursor,
    apply_history_length,
    decode_list_tasks_cursor,
    encode_list_tasks_cursor,
    validate_history_length,
    validate_page_size,
)
from pydantic import JsonValue

from apc_a2a.messages import A2AMessage, answer_of, input_of
from apc_a2a.push import Push
from apc_a2a.tasks import ATTACHED, INTERRUPTED, NAMESPACE, REPEATS, TERMINAL, View, json_of, submitted, view_of
from apc_agents.team import Team
from apc_bus.artifacts import ArtifactStore
from apc_bus.database import DATABASE_AWAY
from apc_bus.errors import BusError
from apc_bus.telemetry import get_logger
from apc_client import Callers, Client, ClientSession, KeyConflict, SessionEvent, SessionRefused, StartUnconfirmed
from apc_contracts.errors import InputUnusable, ServiceAway
from apc_log.queries.packets import BEGINNING, Position

_log = get_logger("apc_a2a")
CALL = "call"
"""Key of a `Call` in the state of a request."""
_AWAY = (ServiceAway, BusError, *DATABASE_AWAY)
_RETRY_SECONDS = 5
_MOST_UNCONFIRMED = 10_000
_LOOKED_THROUGH = 1_000
"""Tasks that a list with a filter by state reads at most."""
_TOO_LARGE = (
    "message.parts: too large for the packet that a task begins with, which holds the message and the input of it: "
    "send less, or bytes as raw parts to an agent that takes messages as they are"
)


@dataclass(slots=True)
class Call:
    """One request: what its answer is beside what the protocol says."""

    status: int | None = None
    """HTTP status in place of the answer; None = the answer."""
    reason: str = ""
    retry_seconds: int = _RETRY_SECONDS


@dataclass(frozen=True, slots=True)
class Limits:
    """What one caller may have at the same time, and how long a request waits."""

    tasks: int = 100
    streams: int = 16
    wait_seconds: float = 300.0


class Caller(NamedTuple):
    """Who asks."""

    name: str
    client: Client


@dataclass(slots=True)
class _Followed:
    """A task that is read again as its session goes on."""

    caller: Caller
    session: ClientSession
    events: list[SessionEvent] = field(default_factory=list)
    covered: Position = BEGINNING
    """Status and questions are at least as new as the packets up to here."""

    async def look(self) -> View | None:
        """Return the task as it is now; None when this caller has none of this id.

        The status is read before the packets: what it says is then among them.
        """
        covered = self.events[-1].position if self.events else BEGINNING
        status = await self.session.status()
        if status is None or status.opener != self.caller.client.agent_id:
            return None
        questions = [] if status.is_terminal else await self.caller.client.questions(status.session_id)
        self.events += await self.session.read(covered)
        self.covered = covered
        return view_of(status, self.events, questions, self.caller.name)


class Door(RequestHandler):
    """The handler of all routes.

    Args:
        callers: the clients of those who may ask.
        team: what answers.
        card: says what the door can.
        artifacts: keeps the bytes of messages.
        push: tells receivers; None = this door tells nobody.
        limits: of each caller.
    """

    def __init__(
        self,
        callers: Callers,
        team: Team,
        card: AgentCard,
        *,
        artifacts: ArtifactStore,
        push: Push | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._callers = callers
        self._team = team
        self._card = card
        self._artifacts = artifacts
        self._push = push
        self._limits = limits or Limits()
        self._waiting: Counter[str] = Counter()
        self._starting: Counter[str] = Counter()
        self._unconfirmed: OrderedDict[str, tuple[str, str]] = OrderedDict()
        """Session -> the caller and the context of a start that the gate has not judged."""

    # Who asks, and which task they mean.

    async def _caller(self, context: ServerCallContext) -> Caller:
        return Caller(context.user.user_name, await self._callers.client(context.user.user_name))

    async def view(self, caller_name: str, task_id: str) -> View:
        """Return a task of a caller. Raises TaskNotFoundError; InputUnusable: the caller is none any more."""
        return await self._view(Caller(caller_name, await self._callers.client(caller_name)), task_id)

    async def changed_at(self, caller_name: str, task_id: str) -> datetime | None:
        """Return when a task of a caller changed last. Raises as `view`."""
        client = await self._callers.client(caller_name)
        status = await self._followed(Caller(caller_name, client), task_id).session.status()
        return status.updated_at if status is not None and status.opener == client.agent_id else None

    async def _view(self, caller: Caller, task_id: str) -> View:
        return await self._look(self._followed(caller, task_id))

    def _followed(self, caller: Caller, task_id: str) -> _Followed:
        """Return a task to be read. Raises TaskNotFoundError for what is no id of a task."""
        if not _is_task_id(task_id):
            raise TaskNotFoundError
        return _Followed(caller, caller.client.session(task_id, self._team))

    async def _look(self, followed: _Followed) -> View:
        view, task_id = await followed.look(), followed.session.session_id
        if view is not None:
            self._unconfirmed.pop(task_id, None)
            return view
        caller, context_id = self._unconfirmed.get(task_id, ("", ""))
        if caller != followed.caller.name:
            raise TaskNotFoundError
        return submitted(task_id, context_id)

    async def _views(self, followed: _Followed) -> AsyncGenerator[View, None]:
        """Yield the task now and after each packet of its session, until the session has ended."""
        view = await self._look(followed)
        yield view
        while not followed.events:  # the gate has not judged its start
            await asyncio.sleep(0.2)
            yield (view := await self._look(followed))
        if view.state in TERMINAL:
            return
        async with aclosing(followed.session.follow(followed.covered)) as news:
            async for event in news:
                if event.position > followed.covered:
                    yield await self._look(followed)
        yield await self._look(followed)

    # Read: one task, and a list.

    @validate_request_params
    async def on_get_task(self, params: GetTaskRequest, context: ServerCallContext) -> Task:
        """Return a task."""
        with answering(context):
            validate_history_length(params)
            view = await self._view(await self._caller(context), params.id)
            return apply_history_length(view.task, params)

    @validate_request_params
    async def on_list_tasks(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        """Return the caller's tasks, those that changed last first."""
        with answering(context):
            validate_history_length(params)
            size = params.page_size if params.HasField("page_size") else 50
            validate_page_size(size)
            caller = await self._caller(context)
            found = await self._page(caller, params, size)
            answer = ListTasksResponse(total_size=found.total, page_size=size)
            if found.has_more and found.views:
                last = found.views[-1].task
                cursor = ListTasksCursor(last.status.timestamp.ToNanoseconds(), last.id)
                answer.next_page_token = encode_list_tasks_cursor(cursor)
            for view in found.views:
                if not params.include_artifacts:
                    view.task.ClearField("artifacts")
                answer.tasks.append(apply_history_length(view.task, params))
            return answer

    async def _page(self, caller: Caller, params: ListTasksRequest, size: int) -> "_Page":
        """Return a page of tasks. A state that the log does not know as such is looked for among the newest 1,000."""
        since = _since(params)
        states, running, is_exact = _LOGGED[params.status]
        before, views, total, looked = _before(params.page_token), list[View](), 0, 0
        if not is_exact:
            before, after = None, before
        while True:
            page = await caller.client.sessions(
                run_id=params.context_id or None,
                since=since,
                states=states,
                running=running,
                before=before,
                limit=size if is_exact else 100,
            )
            for status in page.sessions:
                view = await self._view(caller, status.session_id)
                if is_exact:
                    views.append(view)
                elif view.state == params.status:
                    total += 1
                    is_behind = after is None or (status.updated_at, status.session_id) < after
                    views += [view] if is_behind else []
            looked += len(page.sessions)
            if is_exact:
                return _Page(views, page.total, page.next is not None)
            if page.next is None or looked >= _LOOKED_THROUGH:
                return _Page(views[:size], total, len(views) > size)
            before = page.next

    # Write: a message begins a task or answers its question; cancel.

    @validate_request_params
    async def on_message_send(self, params: SendMessageRequest, context: ServerCallContext) -> Task | Message:
        """Take a message; return the task when it has ended or asks, or at once if the client does not wait."""
        with answering(context):
            caller = await self._caller(context)
            with self._seat(caller, context):
                followed = await self._take(caller, params, context)
                view = await self._look(followed)
                if not params.configuration.return_immediately:
                    view = await self._until_still(followed, view)
                return view.reply or apply_history_length(view.task, params.configuration)

    async def _until_still(self, followed: _Followed, view: View) -> View:
        """Return the task when it has ended or asks, or as it is when the time is over."""
        try:
            async with asyncio.timeout(self._limits.wait_seconds):
                async with aclosing(self._views(followed)) as views:
                    async for view in views:
                        if view.state in TERMINAL | INTERRUPTED:
                            break
        except TimeoutError:
            pass
        return view

    @validate_request_params
    async def on_message_send_stream(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event, None]:
        """Take a message; yield what happens to the task until it has ended or asks."""
        with answering(context):
            caller = await self._caller(context)
            with self._seat(caller, context):
                followed = await self._take(caller, params, context)
                async with aclosing(self._views(followed)) as views:
                    async for event in _stream(views, TERMINAL | INTERRUPTED):
                        yield event

    @validate_request_params
    async def on_subscribe_to_task(
        self, params: SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event, None]:
        """Yield what happens to a task until it has ended."""
        with answering(context):
            caller = await self._caller(context)
            with self._seat(caller, context):
                followed = self._followed(caller, params.id)
                if (await self._look(followed)).state in TERMINAL:
                    raise UnsupportedOperationError("the task has ended: get it")
                async with aclosing(self._views(_Followed(caller, followed.session))) as views:
                    async for event in _stream(views, TERMINAL):
                        yield event

    @validate_request_params
    async def on_cancel_task(self, params: CancelTaskRequest, context: ServerCallContext) -> Task:
        """End a task; return it when it has ended."""
        with answering(context):
            followed = self._followed(await self._caller(context), params.id)
            if (await self._look(followed)).state in TERMINAL:
                raise TaskNotCancelableError
            try:
                await followed.session.cancel("canceled over A2A")
            except SessionRefused as error:
                raise TaskNotCancelableError from error  # it has ended meanwhile
            except InputUnusable as error:
                raise TaskNotCancelableError("the task is not begun yet: try again") from error
            return (await self._look(followed)).task

    async def _take(self, caller: Caller, params: SendMessageRequest, context: ServerCallContext) -> _Followed:
        """Send a message through the gate; return the task that it began or goes on with."""
        sent = params.message
        validate_history_length(params.configuration)
        validate_input_modes(sent, self._card)
        has_receiver = params.configuration.HasField("task_push_notification_config")
        if has_receiver:
            await self._receivers().check(params.configuration.task_push_notification_config)
        task_id = await (self._answer(caller, sent) if sent.task_id else self._start(caller, sent, context))
        if has_receiver:
            config = params.configuration.task_push_notification_config
            config.id = config.id or str(uuid5(NAMESPACE, f"receiver {sent.message_id}"))  # sent again it is the same
            await self._receivers().put(caller.name, task_id, config)
        return _Followed(caller, caller.client.session(task_id, self._team))

    async def _answer(self, caller: Caller, sent: Message) -> str:
        view = await self._view(caller, sent.task_id)
        if sent.context_id and sent.context_id != view.task.context_id:
            raise InvalidParamsError("contextId is not that of the task: leave it out")
        if view.state in TERMINAL:
            raise UnsupportedOperationError("the task has ended: start a new one in its context, without taskId")
        mine = [one for one in await caller.client.questions(sent.task_id) if caller.name in one.may_answer]
        if not mine:
            raise UnsupportedOperationError("the task asks nothing now: wait until it does, or start a new one")
        foreign = await self._foreign(sent)
        said = answer_of(mine[0].answer_schema, foreign["parts"])
        await caller.client.answer(
            mine[0].packet_id,
            approved=said.approved,
            note=said.note,
            person=caller.name,
            answer=said.content,
            attached={ATTACHED: foreign},
        )
        return sent.task_id

    async def _start(self, caller: Caller, sent: Message, context: ServerCallContext) -> str:
        client = caller.client
        if sent.context_id and await client.shares_run(sent.context_id):
            raise InvalidParamsError("this contextId belongs to somebody else: leave it out, or make your own")
        foreign = await self._foreign(sent)
        content = input_of(self._team, sent.message_id, foreign["parts"])
        if isinstance(content, A2AMessage):
            del foreign["parts"]  # they are the content
        key = f"{sent.message_id} {_digest(sent)}" if REPEATS in context.requested_extensions else None
        with self._place_for_task(caller):
            is_known = key is not None and await client.session_of(self._team, key).status() is not None
            if not is_known and await self._is_full(caller):
                raise _busy(context, f"{self._limits.tasks} tasks are open: end one")
            try:
                session = await client.start(
                    self._team, content, key=key, run_id=sent.context_id or None, attached={ATTACHED: foreign}
                )
            except StartUnconfirmed as error:
                self._note_unconfirmed(error.session_id, caller.name, sent.context_id or error.session_id)
                return error.session_id
            except SessionRefused as error:
                if error.session_id is not None and await client.session(error.session_id).status() is not None:
                    return error.session_id  # the task is there: it says that it was rejected, and why
                raise InvalidParamsError(_TOO_LARGE if error.code == "TOO_LARGE" else str(error)) from error
        return session.session_id

    @contextmanager
    def _place_for_task(self, caller: Caller) -> Iterator[None]:
        """Count a task that is being begun: those of several requests at once are not in the log yet."""
        self._starting[caller.name] += 1
        try:
            yield
        finally:
            _take_off(self._starting, caller.name)

    async def _is_full(self, caller: Caller) -> bool:
        others = self._starting[caller.name] - 1
        return others + (await caller.client.sessions(running=True, limit=1)).total >= self._limits.tasks

    def _note_unconfirmed(self, task_id: str, caller: str, context_id: str) -> None:
        self._unconfirmed[task_id] = caller, context_id
        while len(self._unconfirmed) > _MOST_UNCONFIRMED:
            self._unconfirmed.popitem(last=False)

    @contextmanager
    def _seat(self, caller: Caller, context: ServerCallContext) -> Iterator[None]:
        """Count a request that waits. Raises A2AError, and answers 429, when the caller has too many."""
        if self._waiting[caller.name] >= self._limits.streams:
            raise _busy(context, f"{self._limits.streams} requests of yours wait here: end one")
        self._waiting[caller.name] += 1
        try:
            yield
        finally:
            _take_off(self._waiting, caller.name)

    async def _foreign(self, sent: Message) -> dict[str, Any]:
        """Return a message as it is kept in the log: bytes are in the artifact store. Raises A2AError."""
        fields = {key: value for key, value in json_of(sent).items() if key in ("messageId", "metadata", "extensions")}
        return {**fields, "parts": [await self._kept(part) for part in sent.parts]}

    async def _kept(self, part: Part) -> dict[str, JsonValue]:
        if part.WhichOneof("content") != "raw":
            return json_of(part)
        if self._team.input is not A2AMessage:
            raise ContentTypeNotSupportedError("this agent takes text or data, and no bytes")
        kept = {key: value for key, value in json_of(part).items() if key != "raw"}
        return {**kept, "artifact": await self._artifacts.put(part.raw), "size": len(part.raw)}

    # Push.

    def _receivers(self) -> Push:
        if self._push is None:
            raise PushNotificationNotSupportedError
        return self._push

    @validate_request_params
    async def on_create_task_push_notification_config(
        self, params: TaskPushNotificationConfig, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        """Tell a receiver of a task from now on."""
        with answering(context):
            caller, push = await self._caller(context), self._receivers()
            await self._view(caller, params.task_id)
            await push.check(params)
            return await push.put(caller.name, params.task_id, params)

    @validate_request_params
    async def on_get_task_push_notification_config(
        self, params: GetTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        """Return a receiver of a task."""
        with answering(context):
            caller, push = await self._caller(context), self._receivers()
            await self._view(caller, params.task_id)
            found = await push.list(caller.name, params.task_id, params.id)
            if not found:
                raise TaskNotFoundError
            return found[0]

    @validate_request_params
    async def on_list_task_push_notification_configs(
        self, params: ListTaskPushNotificationConfigsRequest, context: ServerCallContext
    ) -> ListTaskPushNotificationConfigsResponse:
        """Return the receivers of a task."""
        with answering(context):
            caller, push = await self._caller(context), self._receivers()
            await self._view(caller, params.task_id)
            return ListTaskPushNotificationConfigsResponse(configs=await push.list(caller.name, params.task_id))

    @validate_request_params
    async def on_delete_task_push_notification_config(
        self, params: DeleteTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> None:
        """Tell a receiver no more."""
        with answering(context):
            caller, push = await self._caller(context), self._receivers()
            await self._view(caller, params.task_id)
            await push.delete(caller.name, params.task_id, params.id)

    async def on_get_extended_agent_card(
        self, params: GetExtendedAgentCardRequest, context: ServerCallContext
    ) -> AgentCard:
        """Say that there is no other card than the public one."""
        raise UnsupportedOperationError("the card at /.well-known/agent-card.json is the only one")


async def _stream(views: AsyncIterator[View], ends: frozenset[int]) -> AsyncIterator[Event]:
    """Yield the task, then its new artifacts and statuses, up to one of the states."""
    told: tuple[int, str] | None = None
    async for view in views:
        if view.reply is not None:
            yield view.reply
            return
        if told is None:
            yield view.task
        else:
            for event in view.artifacts[told[0] :]:
                yield event
            if view.status_key != told[1]:
                yield view.status_event
        told = len(view.artifacts), view.status_key
        if view.state in ends:
            return


class _Page(NamedTuple):
    views: list[View]
    total: int
    has_more: bool


_Filter = tuple[list[str] | None, bool | None, bool]
_HALTED, _CLOSED = "HALTED", "CLOSED"
_LOGGED: dict[int, _Filter] = {
    TaskState.TASK_STATE_UNSPECIFIED: (None, None, True),
    TaskState.TASK_STATE_SUBMITTED: (["SESSION_OPEN"], True, True),
    TaskState.TASK_STATE_WORKING: (None, True, False),
    TaskState.TASK_STATE_INPUT_REQUIRED: (None, True, False),
    TaskState.TASK_STATE_AUTH_REQUIRED: ([], None, True),
    TaskState.TASK_STATE_COMPLETED: ([_CLOSED], False, False),
    TaskState.TASK_STATE_FAILED: ([_HALTED], False, False),
    TaskState.TASK_STATE_CANCELED: ([_HALTED], False, False),
    TaskState.TASK_STATE_REJECTED: ([_HALTED, _CLOSED], False, False),
}
"""State -> states of sessions, whether they go on, and whether no other task has them."""


def _is_task_id(task_id: str) -> bool:
    try:
        return str(UUID(task_id)) == task_id
    except ValueError:
        return False


def _since(params: ListTasksRequest) -> datetime | None:
    if not params.HasField("status_timestamp_after"):
        return None
    try:
        since: datetime = params.status_timestamp_after.ToDatetime(UTC)
    except ValueError as error:
        raise InvalidParamsError("statusTimestampAfter is no time") from error
    return since


def _before(page_token: str) -> tuple[datetime, str] | None:
    if not page_token:
        return None
    cursor = decode_list_tasks_cursor(page_token)
    if cursor is None or cursor.timestamp_ns is None or not _is_task_id(cursor.task_id):
        raise InvalidParamsError("pageToken is not one that this agent gave: leave it out")
    try:
        at = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=cursor.timestamp_ns // 1000)
    except OverflowError as error:
        raise InvalidParamsError("pageToken is not one that this agent gave: leave it out") from error
    return at, cursor.task_id


def _digest(sent: Message) -> str:
    return sha256(sent.SerializeToString(deterministic=True)).hexdigest()


def _take_off(counted: Counter[str], name: str) -> None:
    counted[name] -= 1
    if not counted[name]:
        del counted[name]


# How what goes wrong is told: in the protocol's errors, never with words of ours that name what is inside.


def _call(context: ServerCallContext) -> Call:
    found = context.state.get(CALL)
    return found if isinstance(found, Call) else Call()


def _busy(context: ServerCallContext, reason: str) -> A2AError:
    call = _call(context)
    call.status, call.reason = 429, reason
    return UnsupportedOperationError(reason)


@contextmanager
def answering(context: ServerCallContext) -> Iterator[None]:
    """Turn what a request meets into an error of the protocol; while a service is away the answer is 503."""
    try:
        yield
    except A2AError:
        raise
    except (InputUnusable, KeyConflict) as error:
        raise InvalidParamsError(str(error)) from error
    except SessionRefused as error:
        raise InvalidParamsError(str(error)) from error
    except asyncpg.DataError as error:
        raise InvalidParamsError("the log has no such text: leave U+0000 out") from error
    except _AWAY as error:
        _log.warning("request_waits", reason=f"{type(error).__name__}: {error}")
        call = _call(context)
        call.status, call.reason = 503, "the log or the broker does not answer: come again"
        raise InternalError(call.reason) from error
    except Exception as error:
        _log.exception("request_failed", error=type(error).__name__)
        raise InternalError from error
