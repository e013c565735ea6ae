"""What makes a run repeatable: answers of the model are found again, tool calls are made once."""

from hashlib import sha256
from typing import Any

from pydantic_ai import RunContext, ToolReturn
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ModelRetry, ToolRetryError
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.models import Model
from pydantic_ai.tools import ToolDefinition
from pydantic_core import to_jsonable_python

from apc_agents.handling.handler_context import HandlerContext
from apc_agents.llm.recording import RECORDS, RecordedModel, Recording
from apc_bus.settings import LLMSettings

NOT_MADE = (ModelRetry, ToolRetryError, CallDeferred, ApprovalRequired)
"""What a tool raises to be called otherwise, or later."""


class AnswersByNumber(Recording):
    """Answers by the input and the number of the request: instructions may tell the time, and differ in each run."""

    def next_key(self, digest: str) -> str:
        """Return the key of the next request."""
        return super().next_key("")

    async def forget_revision(self, revision: int) -> None:
        """Forget the records of all inputs with this number."""
        if revision >= 0:
            await self.store.delete_turns(self.session_id, f"{RECORDS}{revision}/")


class Repeatable(AbstractCapability[Any]):
    """Records the model and the tools of one run."""

    def __init__(self, ctx: HandlerContext, recording: Recording, settings: LLMSettings) -> None:
        self._ctx = ctx
        self._recording = recording
        self._settings = settings
        self._turns = 0

    def begin_turn(self) -> None:
        """Tell the tool calls of a run that goes on from those before: it counts its steps from the beginning."""
        self._turns += 1

    def get_wrapper_model(self, model: Model) -> Model:
        """Return the model whose answers are kept, and found again."""
        return RecordedModel(model, self._recording, self._settings)

    async def wrap_tool_execute(
        self, ctx: RunContext[Any], *, call: ToolCallPart, tool_def: ToolDefinition, args: Any, handler: Any
    ) -> Any:
        """Make the call unless it was made for this input already; what it gives is JSON."""

        async def make() -> Any:
            given = await handler(args)
            return to_jsonable_python(given.return_value if isinstance(given, ToolReturn) else given, fallback=str)

        digest = sha256(call.tool_call_id.encode()).hexdigest()[:16]
        step = f"{self._turns}.{ctx.run_step}" if self._turns else str(ctx.run_step)
        return await self._ctx.once(f"tool/{call.tool_name[:100]}/{step}/{digest}", make, not_made=NOT_MADE)
