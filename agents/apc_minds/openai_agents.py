"""Agents of the OpenAI Agents SDK on the bus, as they are. Needs the extra `openai-agents`."""

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextvars import ContextVar
from dataclasses import replace
from functools import cache
from hashlib import sha256
from inspect import isawaitable
from typing import Any, Final, Unpack, cast

import orjson
from pydantic import BaseModel, JsonValue, TypeAdapter

from apc_contracts.errors import ExtraMissing

try:
    import agents  # noqa: F401 - the first that needs the extra
except ModuleNotFoundError as error:
    raise ExtraMissing(error) from error

import openai
from agents import Agent as ModelAgent
from agents import Model, ModelResponse, RunConfig, Runner, RunResult, RunState, set_tracing_disabled
from agents.exceptions import ModelTimeoutError
from agents.items import ToolApprovalItem, TResponseInputItem
from agents.models import get_default_model_settings
from agents.run import CallModelData, ModelInputData

from apc_agents.errors import AgentError, AgentInvalid, Retry
from apc_agents.handling.handler_context import HandlerContext
from apc_agents.handling.inquiry import Approval
from apc_agents.typed import payload_of, schema_of
from apc_minds.joined import (
    AWAY_AFTER,
    Approvers,
    JoinedAgent,
    JoinedOptions,
    Kept,
    Stop,
    Turn,
    denial_of,
    fence_of,
    shown_arguments,
    source_of,
)
from apc_minds.text import DATA_RULE, fenced

__all__ = ["Approvers", "OpenAIAgent"]

MODEL_STEPS: Final = 10
"""How often a run may ask the model, unless the agent is told otherwise: the SDK's own default."""
_AWAY: Final = (openai.APIConnectionError, openai.InternalServerError, openai.RateLimitError, ModelTimeoutError)
"""What a model raises that may answer later."""
_FROM_TOOLS: Final[Mapping[str, JsonValue]] = {"from": "tools"}

# Answers of models are kept before they are used: a turn that is made again gets the same answers, and so makes the
# same calls, which act once.

_asking: ContextVar["ModelAgent[Any] | None"] = ContextVar("apc_openai_asking", default=None)
"""The agent whose model is asked next in this task; the SDK tells it to the input filter, and not to the model."""


@cache
def _answers() -> TypeAdapter[ModelResponse]:
    return TypeAdapter(ModelResponse)


class _KeptAnswers(Model):
    """The models of all agents of one turn; an answer that is kept is not asked for again."""

    def __init__(self, ctx: HandlerContext, kept: Kept, number: int, config: RunConfig) -> None:
        self._ctx = ctx
        self._kept = kept
        self._number = number
        self._config = config
        self._asked: Counter[str] = Counter()
        self._used: Model | None = None
        self.tokens = 0
        """What all answers of the turn have cost, those that were kept included."""

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        """Return the answer that is kept, or ask; `args` and `kwargs` as the SDK's Model.

        Raises EffectError where a tool needs somebody's word: an answer to its error would be kept.
        """
        self._ctx.check_tools()
        agent = _asking.get()
        if agent is None:
            raise AgentError("a model was asked without the input filter of the turn: give no model to Runner.run")
        self._asked[agent.name] += 1
        place = sha256(agent.name.encode()).hexdigest()[:16]
        name = f"answer-{self._number}/{place}/{self._asked[agent.name]}"
        found = (await self._kept.get(name)).get(name)
        if found is not None:
            answer = _answers().validate_json(found)
        else:
            answer = await self._ask(agent, *args, **kwargs)
            await self._kept.put({name: _answers().dump_json(answer, exclude_unset=True).decode()})
        self.tokens += answer.usage.total_tokens
        return answer

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """Raise AgentError: `args` and `kwargs` belong to a stream, and turns are not streamed."""
        raise AgentError("turns of an agent on the bus are not streamed")

    def get_retry_advice(self, request: Any) -> Any:
        """Return what the model that was asked last says of a `request` that failed."""
        return None if self._used is None else self._used.get_retry_advice(request)

    async def _ask(self, agent: "ModelAgent[Any]", *args: Any, **kwargs: Any) -> ModelResponse:
        given, model = self._config.model, agent.model
        if isinstance(given, Model):
            asked = given
        elif given is None and isinstance(model, Model):
            asked = model
        else:
            name = given if given is not None else cast(str | None, model)
            asked = self._config.model_provider.get_model(name)
            implicit = get_default_model_settings(name) if name else get_default_model_settings()
            if agent.model_settings == implicit and len(args) > _SETTINGS:
                # The SDK gives these where it knows the model by its name.
                args = (*args[:_SETTINGS], implicit.resolve(args[_SETTINGS]), *args[_SETTINGS + 1 :])
            elif agent.model_settings == implicit and "model_settings" in kwargs:
                kwargs["model_settings"] = implicit.resolve(kwargs["model_settings"])
        self._used = asked
        return await asked.get_response(*args, **kwargs)


_SETTINGS: Final = 2
"""Where `model_settings` stands among the arguments of Model.get_response."""


class _Marking:
    """Tells the model which text of its input is data."""

    def __init__(self, fence: str, config: RunConfig) -> None:
        self._rule = DATA_RULE.format(fence=fence)
        self._fence = fence
        self._before = config.call_model_input_filter

    async def __call__(self, data: CallModelData[Any]) -> ModelInputData:
        """Return the input with results of tools in marks, and the instructions with the rule about marks."""
        _asking.set(data.agent)
        given = data.model_data
        if self._before is not None:
            changed = self._before(data)
            given = await changed if isawaitable(changed) else changed
        instructions = self._rule if given.instructions is None else f"{given.instructions}\n\n{self._rule}"
        return ModelInputData(input=[self._marked(item) for item in given.input], instructions=instructions)

    def _marked(self, item: TResponseInputItem) -> TResponseInputItem:
        said = cast(dict[str, Any], item)
        if said.get("type") != "function_call_output" or not isinstance(said.get("output"), str):
            return item
        return cast(TResponseInputItem, {**said, "output": fenced(said["output"], self._fence, _FROM_TOOLS)})


class OpenAIAgent(JoinedAgent):
    """An agent of the OpenAI Agents SDK that joins as it is: an input is its prompt, its output goes to the sender.

    A run is cut into turns, each up to the end or to tool calls that need an approval (`needs_approval`). Those become
    questions to the approvers, all of one turn at once; the handler ends, and goes on with the last answer, also after
    days and restarts. What a turn gave is recorded (`ctx.once`), and so is each answer of the model before it is used:
    a handler that runs again asks no model again. Make each tool that acts a tool that acts `once`; others may run
    again. The saved run (RunState) holds arguments and results of tools: it is kept beside `ctx.state`, never in the
    log, and erased with the session's memory. Tokens travel in the outcome into the session budget.

    The input and what tools gave are marked as data for the model. Inputs of a sender below `takes_from` get a NACK.
    The output carries the sender's level in `metadata.provenance`.

    The SDK's own traces are switched off for the process, because they are sent to OpenAI by default.

    ```python
    import agents
    from agents.models.fake_id import FAKE_RESPONSES_ID
    from openai.types.responses import ResponseOutputMessage, ResponseOutputText

    from apc_minds.openai_agents import OpenAIAgent


    class Fake(agents.Model):
        async def get_response(self, *args, **kwargs):
            said = ResponseOutputText(text="because", type="output_text", annotations=[])
            answer = ResponseOutputMessage(
                id=FAKE_RESPONSES_ID, role="assistant", status="completed", type="message", content=[said]
            )
            return agents.ModelResponse(output=[answer], usage=agents.Usage(), response_id=None)

        def stream_response(self, *args, **kwargs):
            raise NotImplementedError


    expert = OpenAIAgent("expert", agents.Agent(name="expert", model=Fake()), input=Question, returns=Answer)
    async with AgentTestClient(expert) as client:
        assert content_of(await client.send(Question(text="why")), Answer) == Answer(text="because")
    ```

    Args:
        agent_id: as Agent.
        joined: the agent of the SDK, with its tools, handoffs and guardrails.
        input: the model whose MESSAGEs and requests it takes.
        returns: the model with `@message` that it gives: the `output_type` of `joined`, or a model with one required
            field, a text, for an agent that answers in words. Default the `output_type`.
        deps: what the run gets as its `context`; it is not kept with the run.
        run_config: of each run; its model and its filter of inputs are obeyed, its tracing is off.
        steps: how often a run may ask the model.
        traces: leave the SDK's traces as they are.
        options: those of JoinedAgent: role, swarm, completes, approvers, takes_from, clearance, rights, concurrency,
            capabilities.

    Raises:
        AgentInvalid: as Agent; `returns` is missing or does not fit.
    """

    framework = "openai-agents"

    def __init__(
        self,
        agent_id: str,
        joined: "ModelAgent[Any]",
        *,
        input: type[BaseModel],
        returns: type[BaseModel] | None = None,
        deps: Any = None,
        run_config: RunConfig | None = None,
        steps: int = MODEL_STEPS,
        traces: bool = False,
        **options: Unpack[JoinedOptions],
    ) -> None:
        super().__init__(agent_id, input=input, returns=_returned(agent_id, joined, returns), **options)
        if not traces:
            set_tracing_disabled(True)
        self.joined = joined
        self._text_field = _text_field(self.returns)
        self._deps = deps
        self._config = run_config or RunConfig()
        self._steps = steps
        self._traces = traces

    async def make_turn(
        self, ctx: HandlerContext, content: Any, number: int, state: str | None, answers: Mapping[str, Approval]
    ) -> Turn:
        """Run the agent to its output or its next interruptions; as JoinedAgent. Raises Retry: the model is away."""
        kept = Kept.of(ctx, self.framework)
        fence = await fence_of(kept)
        models = _KeptAnswers(ctx, kept, number, self._config)
        config = replace(
            self._config,
            model=models,
            call_model_input_filter=_Marking(fence, self._config),
            tracing_disabled=self._config.tracing_disabled or not self._traces,
        )
        prompt = fenced(_written(content), fence, source_of(content, ctx))
        given = prompt if state is None else await self._resumed(state, answers, fence)
        try:
            run = await Runner.run(self.joined, given, context=self._deps, max_turns=self._steps, run_config=config)
        except _AWAY as away:
            raise Retry(AWAY_AFTER, f"{type(away).__name__}: {away}") from away
        if run.interruptions:
            stops = tuple(self._stop(item) for item in run.interruptions)
            return Turn(stops, None, models.tokens, _saved(run))
        return Turn((), self._output_of(run), models.tokens)

    async def _resumed(self, text: str, answers: Mapping[str, Approval], fence: str) -> "RunState[Any, Any]":
        """Return the run as the turn before has left it, with what people have decided."""
        state: RunState[Any, Any] = await RunState.from_string(self.joined, text, context_override={})
        for item in state.get_interruptions():
            end = answers[_id_of(item)]
            if end.approved:
                state.approve(item)
            else:
                state.reject(item, rejection_message=denial_of(str(item.name), end, fence))
        return state

    def _stop(self, item: ToolApprovalItem) -> Stop:
        content: dict[str, JsonValue] = {
            "tool": item.name,
            "tool_call_id": _id_of(item),
            "arguments": shown_arguments(item.arguments),
        }
        return Stop(_id_of(item), f"May {self.agent_id} call {item.name}?", content)

    def _output_of(self, run: RunResult) -> JsonValue:
        """Return the final output as JSON for the model that is returned."""
        given = run.final_output
        if isinstance(given, BaseModel):
            return cast(JsonValue, given.model_dump(mode="json"))
        if isinstance(given, str) and self._text_field is not None:
            return {self._text_field: given}
        return cast(JsonValue, given)


def _saved(run: RunResult) -> str:
    """Return the run as JSON; the context is the program's own, and is given again."""
    return run.to_state().to_string(context_serializer=lambda context: {})


def _id_of(item: ToolApprovalItem) -> str:
    if not item.call_id:
        raise AgentError(f"a call of {item.name} waits for an approval and has no call_id: its model must give one")
    return item.call_id


def _written(content: BaseModel) -> str:
    return orjson.dumps(payload_of(content).model_dump(mode="json")["content"]).decode()


def _returned(agent_id: str, joined: "ModelAgent[Any]", returns: type[BaseModel] | None) -> type[BaseModel]:
    """Return the model of the output. Raises AgentInvalid."""
    given = joined.output_type
    is_model = isinstance(given, type) and issubclass(given, BaseModel)
    if returns is None:
        if not is_model or schema_of(cast(type[BaseModel], given)) is None:
            raise AgentInvalid(
                f"agent {agent_id}: the output_type of {joined.name} is no model with @message: give returns=, a model "
                "with one required field that is a text"
            )
        return cast(type[BaseModel], given)
    if given in (None, str) and _text_field(returns) is None:
        raise AgentInvalid(
            f"agent {agent_id}: {joined.name} answers in words, and {returns.__name__} has not one required field that "
            "is a text: give such a model, or the agent an output_type"
        )
    return returns


def _text_field(model: type[BaseModel]) -> str | None:
    """Return the name of the one required field, if it is a text."""
    required = [name for name, field in model.model_fields.items() if field.is_required()]
    return required[0] if len(required) == 1 and model.model_fields[required[0]].annotation is str else None
