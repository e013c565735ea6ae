"""A server with the fixtures of `@modelcontextprotocol/conformance`, over the same adapter as `apc serve mcp`.

`python -m tests.doors.mcp.conformance PORT` serves it; `make test-mcp-conformance` runs the kit against it.
"""

import asyncio
import sys
from base64 import b64decode, b64encode
from typing import Annotated, Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.prompts.base import UserMessage
from mcp.server.mcpserver.resolve import Elicit, Resolve, Sample
from mcp_types import (
    AudioContent,
    Completion,
    CreateMessageRequest,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequest,
    ElicitRequestFormParams,
    EmbeddedResource,
    GetPromptResult,
    ImageContent,
    InputRequiredResult,
    ListRootsRequest,
    SamplingMessage,
    TextContent,
    TextResourceContents,
)
from pydantic import BaseModel, Field

from apc_mcp.server import http_app
from apc_web.http import make_server, open_listeners
from apc_web.local_names import LOOPBACK_NAMES

PNG = b64encode(
    bytes.fromhex(
        "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d4944415478da63fccfc0f01f0005050201"
        "7ff1d2e40000000049454e44ae426082"
    )
).decode()
WAV = b64encode(
    bytes.fromhex("524946462600000057415645666d74201000000001000100401f0000401f0000010008006461746102000000")
).decode()
Asked = Context[Any, Any]
server: MCPServer[Any] = MCPServer("apc-conformance", version="1", log_level="WARNING")


class Name(BaseModel):
    """What a person is asked."""

    name: str


class Defaults(BaseModel):
    """One default of each kind (SEP-1034)."""

    name: str = "John Doe"
    age: int = 30
    score: float = 95.5
    status: str = Field(default="active", json_schema_extra={"enum": ["active", "inactive", "pending"]})
    verified: bool = True


def form(message: str, name: str, kind: str = "string") -> ElicitRequest:
    """Return a question to a person."""
    schema = {"type": "object", "properties": {name: {"type": kind}}, "required": [name]}
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


def sampling(text: str, most: int = 100) -> CreateMessageRequest:
    """Return a question to the client's model."""
    message = SamplingMessage(role="user", content=TextContent(type="text", text=text))
    return CreateMessageRequest(params=CreateMessageRequestParams(messages=[message], max_tokens=most))


def content_of(ctx: Asked, key: str, name: str) -> Any:
    """Return a field of an answer; None when it is missing, declined or malformed."""
    answer = (ctx.input_responses or {}).get(key)
    content = getattr(answer, "content", None)
    return content.get(name) if isinstance(content, dict) else None


# Contents.


@server.tool()
async def test_simple_text() -> str:
    """A text."""
    return "This is a simple text response for testing."


@server.tool()
async def test_image_content() -> list[ImageContent]:
    """An image."""
    return [ImageContent(type="image", data=PNG, mime_type="image/png")]


@server.tool()
async def test_audio_content() -> list[AudioContent]:
    """A sound."""
    return [AudioContent(type="audio", data=WAV, mime_type="audio/wav")]


def _embedded(uri: str, text: str, kind: str = "text/plain") -> EmbeddedResource:
    return EmbeddedResource(type="resource", resource=TextResourceContents(uri=uri, mime_type=kind, text=text))


@server.tool()
async def test_embedded_resource() -> list[EmbeddedResource]:
    """A resource."""
    return [_embedded("test://embedded-resource", "This is an embedded resource content.")]


@server.tool()
async def test_multiple_content_types() -> list[TextContent | ImageContent | EmbeddedResource]:
    """A text, an image and a resource."""
    image = ImageContent(type="image", data=PNG, mime_type="image/png")
    mixed = _embedded("test://mixed-content-resource", '{"test":"data","value":123}', "application/json")
    return [TextContent(type="text", text="Multiple content types test:"), image, mixed]


@server.tool()
async def test_error_handling() -> str:
    """An error that is expected."""
    raise ToolError("This tool intentionally returns an error for testing")


@server.tool()
async def test_tool_with_progress(ctx: Asked) -> str:
    """Three steps."""
    for step in (0, 50, 100):
        await ctx.report_progress(step, 100, f"Completed step {step} of 100")
    return "done"


@server.tool()
async def test_tool_with_logging(ctx: Asked) -> str:
    """Three lines."""
    for words in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await ctx.info(words)
    return "done"


@server.tool()
async def test_logging_tool(ctx: Asked) -> str:
    """A line that is only sent where it was asked for."""
    await ctx.info("a line")
    return "done"


@server.tool()
async def test_trigger_tool_change(ctx: Asked) -> str:
    """Tells those who listen that the tools have changed."""
    await ctx.notify_tools_changed()
    return "done"


@server.tool()
async def test_trigger_prompt_change(ctx: Asked) -> str:
    """Tells those who listen that the prompts have changed."""
    await ctx.notify_prompts_changed()
    return "done"


# Questions of the server, in both protocols.


async def _whose_name() -> Elicit[Name]:
    return Elicit("What is your name?", Name)


async def _a_greeting() -> Sample:
    return Sample([SamplingMessage(role="user", content=TextContent(type="text", text="Greet"))], max_tokens=50)


@server.tool()
async def test_missing_capability(given: Annotated[CreateMessageResult, Resolve(_a_greeting)]) -> str:
    """Needs a client that has a model."""
    return str(given.model)


@server.tool()
async def test_streaming_elicitation(given: Annotated[Name, Resolve(_whose_name)]) -> str:
    """Asks within a stream."""
    return given.name


@server.tool()
async def test_sampling(prompt: str, ctx: Asked) -> str:
    """Asks the client's model."""
    message = SamplingMessage(role="user", content=TextContent(type="text", text=prompt))
    answer = await ctx.session.create_message([message], max_tokens=100)
    return f"LLM response: {getattr(answer.content, 'text', '')}"


class Reply(BaseModel):
    """What a person says."""

    username: str = ""
    email: str = ""


@server.tool()
async def test_elicitation(message: str, ctx: Asked) -> str:
    """Asks a person."""
    answer = await ctx.elicit(message, Reply)
    return f"User response: {answer.model_dump_json()}"


@server.tool()
async def test_elicitation_sep1034_defaults(ctx: Asked) -> str:
    """Asks with a default of each kind."""
    answer = await ctx.elicit("Please review", Defaults)
    return f"Elicitation completed: {answer.model_dump_json()}"


def _titled(*names: str) -> list[dict[str, str]]:
    return [{"const": name, "title": name.capitalize()} for name in names]


ENUMS: dict[str, Any] = {
    "untitledSingle": {"type": "string", "enum": ["option1", "option2", "option3"]},
    "titledSingle": {"type": "string", "oneOf": _titled("value1", "value2", "value3")},
    "legacyEnum": {"type": "string", "enum": ["opt1", "opt2"], "enumNames": ["Option One", "Option Two"]},
    "untitledMulti": {"type": "array", "items": {"type": "string", "enum": ["option1", "option2", "option3"]}},
    "titledMulti": {"type": "array", "items": {"anyOf": _titled("value1", "value2", "value3")}},
}


@server.tool()
async def test_elicitation_sep1330_enums(ctx: Asked) -> str:
    """Asks with each kind of choice."""
    schema = {"type": "object", "properties": ENUMS, "required": []}
    answer = await ctx.session.elicit_form("Please choose", schema, related_request_id=ctx.request_id)
    return f"Elicitation completed: {answer.model_dump_json()}"


@server.tool()
async def test_input_required_result_elicitation(ctx: Asked) -> str | InputRequiredResult:
    """One question to a person."""
    name = content_of(ctx, "user_name", "name")
    if not isinstance(name, str):
        return InputRequiredResult(input_requests={"user_name": form("What is your name?", "name")})
    return f"Hello, {name}!"


@server.tool()
async def test_input_required_result_sampling(ctx: Asked) -> str | InputRequiredResult:
    """One question to the client's model."""
    answer = (ctx.input_responses or {}).get("capital_question")
    if answer is None:
        return InputRequiredResult(input_requests={"capital_question": sampling("What is the capital of France?")})
    return str(getattr(getattr(answer, "content", None), "text", answer))


@server.tool()
async def test_input_required_result_list_roots(ctx: Asked) -> str | InputRequiredResult:
    """The client's roots."""
    answer = (ctx.input_responses or {}).get("client_roots")
    if answer is None:
        return InputRequiredResult(input_requests={"client_roots": ListRootsRequest()})
    return ", ".join(str(root.uri) for root in getattr(answer, "roots", ()))


@server.tool()
async def test_input_required_result_request_state(ctx: Asked) -> str | InputRequiredResult:
    """State that comes back."""
    if content_of(ctx, "confirm", "ok") is None or ctx.request_state != "round-1":
        asked = {"confirm": form("Please confirm", "ok", "boolean")}
        return InputRequiredResult(input_requests=asked, request_state="round-1")
    return "state-ok"


@server.tool()
async def test_input_required_result_tampered_state(ctx: Asked) -> str | InputRequiredResult:
    """State that nobody may change: the SDK seals it."""
    return await test_input_required_result_request_state(ctx)


@server.tool()
async def test_input_required_result_multiple_inputs(ctx: Asked) -> str | InputRequiredResult:
    """Three questions at once."""
    asked = {
        "user_name": form("What is your name?", "name"),
        "greeting": sampling("Generate a greeting", 50),
        "client_roots": ListRootsRequest(),
    }
    if asked.keys() - (ctx.input_responses or {}).keys():
        return InputRequiredResult(input_requests=asked, request_state="all")
    return f"Hello, {content_of(ctx, 'user_name', 'name')}!"


@server.tool()
async def test_input_required_result_multi_round(ctx: Asked) -> str | InputRequiredResult:
    """Two rounds."""
    if ctx.request_state is None:
        asked = {"step1": form("Step 1: What is your name?", "name")}
        return InputRequiredResult(input_requests=asked, request_state="round-1")
    if ctx.request_state == "round-1":
        asked = {"step2": form("Step 2: What is your favorite color?", "color")}
        return InputRequiredResult(input_requests=asked, request_state="round-2")
    return f"It is {content_of(ctx, 'step2', 'color')}"


@server.tool()
async def test_input_required_result_capabilities(ctx: Asked) -> str | InputRequiredResult:
    """Asks only what the client can answer."""
    able, asked = ctx.client_capabilities, dict[str, Any]()
    if able is not None and able.elicitation is not None:
        asked["user_name"] = form("What is your name?", "name")
    if able is not None and able.sampling is not None:
        asked["greeting"] = sampling("Generate a greeting", 50)
    if not asked or ctx.input_responses:
        return "done"
    return InputRequiredResult(input_requests=asked)


# Resources, prompts, completion.


@server.resource("test://static-text", mime_type="text/plain")
def static_text() -> str:
    """A text."""
    return "This is the content of the static text resource."


@server.resource("test://static-binary", mime_type="image/png")
def static_binary() -> bytes:
    """An image."""
    return b64decode(PNG)


@server.resource("test://template/{id}/data", mime_type="application/json")
def template(id: str) -> str:
    """A template."""
    return f'{{"id":"{id}","templateTest":true,"data":"Data for ID: {id}"}}'


@server.prompt()
def test_simple_prompt() -> str:
    """A text."""
    return "This is a simple prompt for testing."


@server.prompt()
def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
    """With arguments."""
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


@server.prompt()
def test_prompt_with_embedded_resource(resourceUri: str) -> list[UserMessage]:
    """With a resource."""
    return [UserMessage(_embedded(resourceUri, "Embedded resource content for testing.")), UserMessage("Process it.")]


@server.prompt()
def test_prompt_with_image() -> list[UserMessage]:
    """With an image."""
    return [UserMessage(ImageContent(type="image", data=PNG, mime_type="image/png")), UserMessage("Look at it.")]


@server.prompt()
async def test_input_required_result_prompt(ctx: Asked) -> GetPromptResult | InputRequiredResult | list[UserMessage]:
    """A prompt that asks."""
    given = content_of(ctx, "user_context", "context")
    if given is None:
        asked = {"user_context": form("What context should the prompt use?", "context")}
        return InputRequiredResult(input_requests=asked)
    return [UserMessage(f"Use this: {given}")]


@server.completion()  # type: ignore[no-untyped-call, untyped-decorator]
async def complete(reference: Any, argument: Any, context: Any) -> Completion:
    """Nothing to complete."""
    return Completion(values=[], total=0, has_more=False)


async def main(port: int) -> None:
    """Serve until SIGTERM."""
    with open_listeners("127.0.0.1", port) as listeners:
        app = http_app(server, LOOPBACK_NAMES)
        await make_server(app, "127.0.0.1", port, lifespan=True, graceful_seconds=1).serve(listeners)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
