"""Graphs of LangGraph on the bus, as they are, and where their checkpoints are kept. Needs the extra `langgraph`."""

import asyncio
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Unpack, cast
from weakref import WeakKeyDictionary

import orjson
from pydantic import BaseModel, JsonValue

from apc_contracts.errors import ExtraMissing

try:
    import langgraph  # noqa: F401 - the first that needs the extra
except ModuleNotFoundError as error:
    raise ExtraMissing(error) from error

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_id,
    get_checkpoint_metadata,
    writes_sort_key,
)
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.pregel import Pregel
from langgraph.types import Command, Interrupt, StateSnapshot

from apc_agents.errors import AgentError, AgentInvalid
from apc_agents.handling.handler_context import HandlerContext
from apc_agents.handling.inquiry import Approval
from apc_agents.tool_effects import current_handler
from apc_contracts.payloads.by_type import MAX_TEXT
from apc_minds.joined import Approvers, JoinedAgent, JoinedOptions, Kept, Stop, Turn

__all__ = ["AgentStateSaver", "Approvers", "LangGraphAgent"]

FRAMEWORK: Final = "langgraph"
GRAPH_STEPS: Final = 25
"""Steps of a graph in one turn, unless the agent is told otherwise."""

# Checkpoints as values of the agent's state: of a thread an index of its checkpoints, each checkpoint, and its writes.

_Writes = dict[str, list[Any]]
"""`task/number` -> task, channel, type and Base64 of the value, path of the task."""


class AgentStateSaver(BaseCheckpointSaver[int]):
    """Keeps the checkpoints of graphs that run in handlers, as states of the agent beside `ctx.state`.

    They lie where the agent's states do: in Postgres with `APC_DATABASE_URL`, in the rows of the agent's own login.
    They are not in the log, they are erased with the session's memory, and deleted when the run ends. A thread belongs
    to the packet whose handler runs: no other is read or written. What is kept is read without running code: types
    beyond LangGraph's and LangChain's own must be named.

    ```python
    from apc_minds.langgraph import AgentStateSaver

    saver = AgentStateSaver(allow=[Question])
    ```

    Args:
        allow: classes of the graph's state that may be built when it is read: models, dataclasses, enums.
    """

    def __init__(self, allow: Iterable[type] = ()) -> None:
        named = [(one.__module__, one.__name__) for one in allow]
        super().__init__(serde=JsonPlusSerializer(pickle_fallback=False, allowed_msgpack_modules=named or None))
        self._locks: WeakKeyDictionary[HandlerContext, asyncio.Lock] = WeakKeyDictionary()

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return a checkpoint of the thread that the `config` names, by default the newest."""
        kept, namespace = self._kept(config), _namespace(config)
        checkpoint_id = get_checkpoint_id(config)
        if checkpoint_id is None:
            ids = await _index(kept, namespace)
            if not ids:
                return None
            checkpoint_id = max(ids)
        return await self._read(kept, config, namespace, checkpoint_id)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Yield the checkpoints of the thread that the `config` names, newest first.

        `filter` compares their metadata; `before` names one that they are older than; at most `limit`.
        """
        if config is None:
            raise AgentError("checkpoints of a handler are listed by their thread: give a config with thread_id")
        kept, namespace = self._kept(config), _namespace(config)
        bound = None if before is None else get_checkpoint_id(before)
        left = limit
        for checkpoint_id in sorted(await _index(kept, namespace), reverse=True):
            if left == 0:
                return
            if bound is not None and checkpoint_id >= bound:
                continue
            found = await self._read(kept, config, namespace, checkpoint_id)
            if found is None or any(found.metadata.get(key) != value for key, value in (filter or {}).items()):
                continue
            left = None if left is None else left - 1
            yield found

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Keep a `checkpoint` with its `metadata`; return its config. `new_versions` are part of it."""
        kept, namespace = self._kept(config), _namespace(config)
        document = {
            "checkpoint": self._written(checkpoint),
            "metadata": self._written(get_checkpoint_metadata(config, metadata)),
            "parent": get_checkpoint_id(config),
        }
        async with self._lock():
            ids = await _index(kept, namespace)
            if checkpoint["id"] not in ids:
                ids.append(checkpoint["id"])
            await kept.put(
                {
                    _place(namespace, checkpoint["id"]): cast(JsonValue, document),
                    _place(namespace): cast(JsonValue, ids),
                }
            )
        return _config_of(config, namespace, checkpoint["id"])

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Keep the `writes` of a task beside the checkpoint; `task_id` and `task_path` are the task's.

        What a node wrote that hid the error of a tool is not kept: the node runs again when somebody has settled it.
        """
        kept = self._kept(config)
        if _running().tool_failures:
            writes = [one for one in writes if one[0] in WRITES_IDX_MAP]
        place = _place(_namespace(config), str(get_checkpoint_id(config)), "writes")
        async with self._lock():
            found: _Writes = (await kept.get(place)).get(place, {})
            for number, (channel, value) in enumerate(writes):
                number = WRITES_IDX_MAP.get(channel, number)
                key = f"{task_id}/{number}"
                if number < 0 or key not in found:
                    found[key] = [task_id, number, channel, *self._written(value), task_path]
            await kept.put({place: cast(JsonValue, found)})

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete what is kept of the run."""
        await self._kept({"configurable": {"thread_id": thread_id}}).forget()

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Raise AgentError: a handler is a coroutine, whatever the `config` says."""
        raise _blocking()

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Raise AgentError, whatever `config`, `filter`, `before` and `limit` are."""
        raise _blocking()

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Raise AgentError, whatever `config`, `checkpoint`, `metadata` and `new_versions` are."""
        raise _blocking()

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Raise AgentError, whatever `config`, `writes`, `task_id` and `task_path` are."""
        raise _blocking()

    def _kept(self, config: RunnableConfig) -> Kept:
        """Return the values of the run. Raises AgentError outside of a handler, and for another packet's thread."""
        ctx, thread_id = _running(), str(config["configurable"]["thread_id"])
        if thread_id != str(ctx.packet.packet_id):
            raise AgentError(
                f"thread_id {thread_id} is not the packet that is handled, {ctx.packet.packet_id}: a handler reads and "
                "writes the checkpoints of the handled packet alone"
            )
        return Kept.of(ctx, FRAMEWORK)

    def _lock(self) -> asyncio.Lock:
        """Return what lets one task of a handler at a time change its documents."""
        return self._locks.setdefault(_running(), asyncio.Lock())

    async def _read(
        self, kept: Kept, config: RunnableConfig, namespace: str, checkpoint_id: str
    ) -> CheckpointTuple | None:
        place, beside = _place(namespace, checkpoint_id), _place(namespace, checkpoint_id, "writes")
        found = await kept.get(place, beside)
        if place not in found:
            return None
        document, writes = found[place], cast(_Writes, found.get(beside, {}))
        ordered = sorted(writes.values(), key=lambda one: writes_sort_key(one[5], one[0], one[1]))
        parent = document["parent"]
        return CheckpointTuple(
            config=_config_of(config, namespace, checkpoint_id),
            checkpoint=self._read_value(document["checkpoint"]),
            metadata=self._read_value(document["metadata"]),
            parent_config=None if parent is None else _config_of(config, namespace, parent),
            pending_writes=[(one[0], one[2], self._read_value(one[3:5])) for one in ordered],
        )

    def _written(self, value: Any) -> Sequence[str]:
        kind, body = self.serde.dumps_typed(value)
        return [kind, b64encode(body).decode()]

    def _read_value(self, written: Sequence[str]) -> Any:
        kind, body = written
        return self.serde.loads_typed((kind, b64decode(body)))


def _running() -> HandlerContext:
    ctx = current_handler()
    if ctx is None:
        raise AgentError("AgentStateSaver keeps checkpoints of a handler, and no handler runs here")
    return ctx


def _blocking() -> AgentError:
    return AgentError("a graph in a handler is called with `await graph.ainvoke(...)`")


def _namespace(config: RunnableConfig) -> str:
    return str(config["configurable"].get("checkpoint_ns", ""))


def _place(namespace: str, *parts: str) -> str:
    return "/".join(("checkpoints", namespace, *parts))


async def _index(kept: Kept, namespace: str) -> "list[str]":
    place = _place(namespace)
    return list((await kept.get(place)).get(place, ()))


def _config_of(config: RunnableConfig, namespace: str, checkpoint_id: str) -> RunnableConfig:
    thread_id = config["configurable"]["thread_id"]
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": namespace, "checkpoint_id": checkpoint_id}}


class _Watch(BaseCallbackHandler):
    """Counts the tokens of every chat model that a graph calls, and ends nodes that hide what a tool did not record.

    A node that swallowed the error of a tool would leave that in its checkpoint, and the graph would go on from there
    when somebody has found out what the tool did.
    """

    raise_error = True
    run_inline = True

    def __init__(self, ctx: HandlerContext) -> None:
        super().__init__()
        self._ctx = ctx
        self.tokens = 0

    def on_chain_end(self, outputs: Any, **kwargs: Any) -> None:
        """Raise EffectError when a tool needs somebody's word, whatever the `outputs` are; `kwargs` say whose."""
        self._ctx.check_tools()

    def on_llm_end(self, response: LLMResult, **kwargs: Any) -> None:
        """Count those of a `response`; `kwargs` say who asked."""
        for generations in response.generations:
            for one in generations:
                usage = getattr(one.message, "usage_metadata", None) if isinstance(one, ChatGeneration) else None
                self.tokens += int(usage["total_tokens"]) if usage else 0


class LangGraphAgent(JoinedAgent):
    """A compiled graph of LangGraph that joins as it is: an input is its first state, its end goes to the sender.

    The thread of a run is its packet. A run is cut into turns, each up to the end or to `interrupt(...)`. Interrupts
    become questions to the approvers, all of one turn at once; the handler ends, and goes on with the last answer,
    also after days and restarts. `interrupt` then returns a dict: `approved`, `outcome`, `by` and `note`. What a turn
    gave is recorded (`ctx.once`). A worker that dies in a turn goes on from the last checkpoint: a node that had not
    ended runs again. So nodes are checkpointed, and tools that act are `once`. Tokens of chat models travel in the
    outcome.

    An interrupt's value is shown to people: a text, or JSON whose `question` is the text.

    ```python
    from typing import TypedDict

    from langgraph.graph import END, START, StateGraph

    from apc_minds.langgraph import AgentStateSaver, LangGraphAgent


    class State(TypedDict, total=False):
        text: str


    async def think(state: State) -> State:
        return {"text": f"because {state['text']}"}


    graph = StateGraph(State).add_node(think).add_edge(START, "think").add_edge("think", END)
    agent = LangGraphAgent("expert", graph.compile(checkpointer=AgentStateSaver()), input=Question, returns=Answer)
    async with AgentTestClient(agent) as client:
        assert content_of(await client.send(Question(text="why")), Answer) == Answer(text="because why")
    ```

    Args:
        agent_id: as Agent.
        graph: compiled with a durable checkpointer: AgentStateSaver, or your own, which keeps what a node wrote that
            hid the error of a tool.
        input: the model whose MESSAGEs and requests it takes.
        returns: the model with `@message` that it gives.
        enters: makes the graph's input of an input; default its fields.
        leaves: makes the output of the graph's last state; default the fields of `returns` in it.
        steps: how many steps one turn of the graph may have.
        options: those of JoinedAgent: role, swarm, completes, approvers, takes_from, clearance, rights, concurrency,
            capabilities.

    Raises:
        AgentInvalid: as Agent; the graph has no checkpointer.
    """

    framework = FRAMEWORK

    def __init__(
        self,
        agent_id: str,
        graph: "Pregel[Any, Any, Any, Any]",
        *,
        input: type[BaseModel],
        returns: type[BaseModel],
        enters: Callable[[Any], Any] | None = None,
        leaves: Callable[[Any], BaseModel] | None = None,
        steps: int = GRAPH_STEPS,
        **options: Unpack[JoinedOptions],
    ) -> None:
        super().__init__(agent_id, input=input, returns=returns, **options)
        if not isinstance(graph.checkpointer, BaseCheckpointSaver):
            raise AgentInvalid(
                f"agent {agent_id}: the graph has no checkpointer, so a run that is interrupted would begin again: "
                "graph.compile(checkpointer=AgentStateSaver())"
            )
        self.graph = graph
        self._enters = enters
        self._leaves = leaves
        self._steps = steps

    async def make_turn(
        self, ctx: HandlerContext, content: Any, number: int, state: str | None, answers: Mapping[str, Approval]
    ) -> Turn:
        """Run the graph to its end or its next interrupts, from its last checkpoint; as JoinedAgent."""
        watch = _Watch(ctx)
        config: RunnableConfig = {
            "configurable": {"thread_id": str(ctx.packet.packet_id)},
            "recursion_limit": self._steps,
            "callbacks": [watch],
        }
        found = await self.graph.aget_state(config)
        is_begun = found.created_at is not None
        if number and not is_begun:
            raise AgentError(
                f"the checkpoints of packet {ctx.packet.packet_id} are not kept any more: they were erased, or the "
                "graph's checkpointer is not durable. Send the input again"
            )
        if not is_begun:
            found = await self._invoked(self._entered(content), config)
        elif (given := _next_input(found, answers)) is not _NOTHING:
            found = await self._invoked(given, config)
        if found.interrupts:
            return Turn(tuple(map(self._stop, found.interrupts)), None, watch.tokens, _newest(found))
        return Turn((), self._left_by(found.values), watch.tokens)

    async def _invoked(self, given: Any, config: RunnableConfig) -> StateSnapshot:
        await self.graph.ainvoke(given, config, durability="sync")
        return await self.graph.aget_state(config)

    def _entered(self, content: BaseModel) -> Any:
        return content.model_dump(mode="json") if self._enters is None else self._enters(content)

    def _left_by(self, values: Any) -> JsonValue:
        """Return the output as JSON. Raises AgentError for a state without the fields of the output."""
        if self._leaves is not None:
            return cast(JsonValue, self._leaves(values).model_dump(mode="json"))
        state = values.model_dump() if isinstance(values, BaseModel) else values
        if not isinstance(state, Mapping):
            raise AgentError(f"the graph of {self.agent_id} ends with {type(state).__name__}: give leaves=")
        fields = {name: state[name] for name in self.returns.model_fields if name in state}
        return cast(JsonValue, self._output(cast(JsonValue, fields)).model_dump(mode="json"))

    def _stop(self, stop: Interrupt) -> Stop:
        value = stop.value
        question = value.get("question") if isinstance(value, dict) else value
        text = question if isinstance(question, str) and question else f"May {self.agent_id} go on?"
        shown = orjson.loads(orjson.dumps(value, default=str))
        return Stop(stop.id, text[:MAX_TEXT], {"interrupt": stop.id, "value": shown})


_NOTHING: Final = object()
"""The graph has come to its stops, or to its end, and the turn was not recorded."""


def _next_input(found: StateSnapshot, answers: Mapping[str, Approval]) -> Any:
    """Return what the graph goes on with: answers to what it waits for, None after a death, or nothing."""
    given = {one.id: _answer(answers[one.id]) for one in found.interrupts if one.id in answers}
    if given:
        return Command(resume=given)
    return _NOTHING if found.interrupts or not found.next else None


def _answer(end: Approval) -> dict[str, JsonValue]:
    return {"approved": end.approved, "outcome": end.outcome.value, "by": end.by, "note": end.note}


def _newest(found: StateSnapshot) -> str:
    """Return what names the checkpoint that a turn has left."""
    return str(found.config["configurable"].get("checkpoint_id"))
