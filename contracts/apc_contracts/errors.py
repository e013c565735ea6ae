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
"""


class ApcError(Exception):
    """The base of every error of apc-bus."""


class InputUnusable(ApcError):
    """A file, an option, a table or a request that cannot be used."""


class ServiceAway(ApcError):
    """A broker, a database or a service that does not answer in time."""


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
