"""A module name means one thing in the whole product, so that a search for it finds one subject.

Folders are left out: they name areas, and the modules in them the subjects.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]

NO_NAMES = frozenset({"__init__", "__main__"})

SHARED_SUBJECTS = {
    "acknowledgements": "ACKs that a session expects, and emits that wait for them",
    "agent": "an agent, an agent that asks a language model, the agent of a chat",
    "agents": "registered agents: changed, listed, checked",
    "app": "an ASGI application",
    "asyncapi": "the AsyncAPI document, and its command",
    "audit": "the log's record of compressions of a context",
    "batch": "a log batch: its format, and one in the making",
    "bodies": "stored bodies of packets",
    "broker": "the broker: the one in process, its settings, connection and checks",
    "broker_users": "the broker user of each agent",
    "bus": "one adapter of the bus port",
    "chaos": "injected faults: their settings, and the scorecard",
    "chat": "conversations with an agent: command, models and routes",
    "client": "a client that starts sessions, outside or inside the system's process",
    "conditions": "the events of a coordinator's machine",
    "conflicts": "packet ids with different contents: recorded and listed",
    "connection": "a connection to the log's database",
    "context": "the context object of an agent, and its settings",
    "conversation": "the turns of a conversation: as stored, and as a window",
    "counting": "how packets count in a session of each coordinator",
    "cursors": "opaque positions between the pages of a list",
    "database": "what its folder has in Postgres, or on the way there",
    "dead_letters": "packets in the dead queue: read and checked",
    "decisions": "arbitrations: query, models, lists and routes",
    "definitions": "RabbitMQ definitions, and the command that exports them",
    "delivery": "a packet as a worker gets it, and the settings of that",
    "effects": "effects of agents outside the bus: settings and checks",
    "encryption": "the encryption of bodies in the log, and its settings",
    "entries": "entries of the log, at each layer that makes or reads them",
    "erasure": "destroying a subject's key, and the command that does it",
    "errors": "the errors that a package raises",
    "evidence": "proofs of the log: printed and checked",
    "gate": "the gate of a shard, and its settings",
    "group": "the declaration of one command group",
    "health": "whether a part of the system works",
    "in_memory": "the store of its folder that ends with the process",
    "inbox": "what waits for a person: models, lists and routes",
    "intake": "what a process does first with each message that it receives",
    "keys": "the signing key of an agent, and the commands for it",
    "log": "the log itself: models and routes",
    "metrics": "the metrics that a process exports",
    "migrate": "bringing the database to this release, and its command",
    "model": "the records that the store of its folder keeps",
    "openlineage": "OpenLineage events, and the command that writes them",
    "packet": "one packet, and everything that the log has on it",
    "packets": "lists of packets: query, models, lists and routes",
    "priors": "strategy priors, and the benchmark of them",
    "protocols": "figures and accounts of protocols",
    "questions": "questions to people: payloads, rules and queries",
    "receipts": "receipts: on the wire, and what they do to a delivery",
    "registry": "the registered agents, at each layer that holds them",
    "relevance": "the Symbolic Resonance Score, and its settings",
    "repeats": "packets that arrive again",
    "routing": "to whom a packet goes: the rules, then the deliveries",
    "runs": "lists of runs: query, models and lists",
    "service": "one component as a process",
    "services": "all services: what each reads, and the command that runs them",
    "session": "one session, at each layer that shows or holds it",
    "sessions": "all sessions, at each layer that shows or holds them",
    "shards": "the shards of a log and their ends",
    "signing": "signatures of packets, and the settings of the keys",
    "statements": "the SQL of its folder",
    "store": "the store of its folder, mostly a port",
    "streaming": "server-sent events",
    "subscription": "a consumer of an adapter of the bus port",
    "summarizing": "shortening turns of a conversation, with and without a model",
    "surroundings": "what an explanation knows beside the session",
    "system": "a whole system that runs in this process or beside it",
    "tasks": "durable tasks of agents: settings, and those of a chat",
    "testing": "what a user's tests import",
    "timeline": "a session drawn in time: query, models and list",
    "timers": "deadlines of sessions: set, and passed",
    "topology": "exchanges and queues: the plan, and that of this deployment",
    "tracing": "spans, and the settings of their export",
    "up": "`apc up`: the command, and the system that it starts",
    "users": "accounts of the web console",
    "verdicts": "verdicts on packets: reached, and their effects on a session",
    "verification": "what must be verified of a packet, and the tasks that do it",
    "view": "what a command prints",
    "waits": "what a session waits for: rules and words",
    "wakes": "timers of agents: payload and rules",
    "worker": "a worker: one agent at one bus, as object, process and command",
}
"""Names that several modules may have, because all of them treat the named subject."""


def test_a_name_of_several_modules_names_one_subject() -> None:
    shared = _names_of_several(_modules())
    assert {name: files for name, files in shared.items() if name not in SHARED_SUBJECTS} == {}
    assert sorted(SHARED_SUBJECTS.keys() - shared.keys()) == [], "no longer shared"


def test_names_of_several_are_found() -> None:
    files = ["a/apc_a/rows.py", "b/apc_b/rows.py", "b/apc_b/tables.py", "a/apc_a/__init__.py", "b/apc_b/__init__.py"]
    assert _names_of_several(map(Path, files)) == {"rows": ["a/apc_a/rows.py", "b/apc_b/rows.py"]}


def _modules() -> list[Path]:
    found = sorted(file.relative_to(ROOT) for file in ROOT.glob("*/apc_*/**/*.py"))
    assert len(found) > 300, "the packages were not found"
    return found


def _names_of_several(modules: Iterable[Path]) -> Mapping[str, list[str]]:
    """Return the names of more than one module, with the files."""
    files = defaultdict(list)
    for module in modules:
        files[module.stem].append(module.as_posix())
    return {name: paths for name, paths in files.items() if len(paths) > 1 and name not in NO_NAMES}
