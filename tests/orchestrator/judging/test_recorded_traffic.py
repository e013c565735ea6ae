"""Traffic of apc/1.0 recorded before contracts had names: judged again, every entry is the same, byte for byte.

`traffic-1.0.jsonl.xz` holds what the gates of this folder's tests were given, refusals included, and the log batches
that they sealed. The clock is the recorded one, so times are compared too.
"""

import json
import lzma
from base64 import b64decode
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from msgspec.structs import asdict, replace

from apc_bus.port import Delivery, Message, Publication
from apc_contracts.contract.collection import Contracts
from apc_contracts.contract.contract import Contract, contract_from_bytes, load_contract, task_contract
from apc_contracts.identity.registry import Registration
from apc_contracts.limits import DocumentLimits
from apc_contracts.protocol.ledger import ProtocolLedger
from apc_contracts.vocabulary import PacketType, Right
from apc_contracts.wire.parsing import parse_packet
from apc_contracts.wire.receipts import parse_receipts
from apc_log.batch import LogBatch, decode_batch, encode
from apc_orchestrator.batch import Batch, Outgoing
from apc_orchestrator.judging.inputs import read_input
from apc_orchestrator.judging.judge import Judge
from apc_orchestrator.judging.memory import ShardMemory
from apc_orchestrator.judging.registry import Registry
from apc_orchestrator.lease import Lease

TRAFFIC = Path(__file__).parent / "traffic-1.0.jsonl.xz"
CONTRACT_HASH = "7db531e819706348b863342f48c447938fe3d666ef6b81989a30a9107cbef70c"
Step = dict[str, Any]


def leases() -> list[list[Step]]:
    """The recorded leases: each begins with what its gate knew."""
    found: list[list[Step]] = []
    with lzma.open(TRAFFIC, "rt") as lines:
        for line in lines:
            step = json.loads(line)
            if step["op"] == "lease":
                found.append([])
            found[-1].append(step)
    return found


class Gate:
    """The judge of one recorded lease, without broker and database."""

    def __init__(self, lease: Step) -> None:
        body = lease["contract"]
        contract: Contract = load_contract() if body is None else contract_from_bytes(b64decode(body))
        bounds = contract.limits
        self.limits = DocumentLimits(bounds.packet_bytes, bounds.nesting_levels, bounds.nodes)
        held = Lease(lease["shard"], lease["epoch"], lease["committed"], lease["user"], UUID(lease["holder"]))
        known = {one["agent_id"]: registration(one) for one in lease["registry"]}
        registry = Registry(held.user, known, set())
        protocols = ProtocolLedger(contract.effectiveness)
        contracts = Contracts(contract, [task_contract()])
        where = lease["shards"], lease["operator"]
        # The gate that was recorded logged every HEARTBEAT.
        self.memory = ShardMemory(contracts, held, *where, registry, protocols, logs_heartbeats=True)
        self.judge = Judge(self.memory)
        self.batch: Batch | None = None

    def take(self, step: Step) -> None:
        if "batch" in step and (self.batch is None or self.batch.number != step["batch"]):
            self.batch = Batch(step["batch"], datetime.fromisoformat(step["now"]))
        getattr(self, f"_{step['op']}")(step)

    def sealed(self) -> bytes:
        assert self.batch is not None
        return encode(self.batch.seal(self.memory.lease.shard, self.memory.lease.epoch))

    def _take(self, step: Step) -> None:
        assert self.batch is not None
        message = message_of(step["message"])
        delivery = Delivery(message, 1, "", False)
        self.judge.take(self.batch, read_input(delivery, self.limits), message)

    def _set_aside(self, step: Step) -> None:
        assert self.batch is not None
        self.judge.set_aside(self.batch, message_of(step["message"]))

    def _judge_own(self, step: Step) -> None:
        assert self.batch is not None
        self.judge.judge_own(self.batch, parse_packet(b64decode(step["body"])))

    def _take_receipts(self, step: Step) -> None:
        session = self.memory.sessions.get(step["session"])
        assert self.batch is not None and session is not None
        receipts = parse_receipts(json.dumps(step["receipts"]).encode())
        self.judge.take_receipts(self.batch, session, receipts, step["user"])

    def _confirm_delivery(self, step: Step) -> None:
        packet_id = None if step["packet_id"] is None else UUID(step["packet_id"])
        nothing = Publication("", "", Message(b"", ""))
        self.judge.confirm_delivery(Outgoing(nothing, step["session"], packet_id, step["recipient"], step["attempt"]))

    def _confirm_substrate(self, step: Step) -> None:
        session = self.memory.sessions.get(step["session"])
        assert self.batch is not None and session is not None
        self.judge.confirm_substrate(self.batch, session, UUID(step["packet_id"]))


def message_of(step: Step) -> Message:
    return Message(
        b64decode(step["body"]),
        step["message_id"],
        type=step["type"],
        user_id=step["user_id"],
        headers=step["headers"],
    )


def registration(one: Step) -> Registration:
    return Registration(
        one["agent_id"],
        one["broker_user"],
        one["role"],
        one["swarm_id"],
        frozenset(Right(right) for right in one["rights"]),
        frozenset(PacketType(kind) for kind in one["handles"]),
        one["public_keys"],
        one["is_revoked"],
    )


def replayed(steps: list[Step]) -> Iterator[tuple[bytes, bytes]]:
    """Yield each recorded log batch and the one that this code seals."""
    gate = Gate(steps[0])
    for step in steps[1:]:
        if step["op"] == "sealed":
            yield b64decode(step["log"]), gate.sealed()
        else:
            gate.take(step)


def without_sessions(batch: LogBatch) -> LogBatch:
    return replace(batch, sessions=[])


def documents(batch: LogBatch, recorded: LogBatch) -> list[Step]:
    """The rows of `sessions`; fields of the document that came later are left out while they are null."""
    known = {name for row in recorded.sessions for name in json.loads(row.document)}
    rows = []
    for row in batch.sessions:
        document = {
            name: value for name, value in json.loads(row.document).items() if name in known or value is not None
        }
        rows.append({**asdict(row), "document": document})
    return rows


def test_the_recorded_traffic_has_the_same_entries() -> None:
    verdicts: Counter[str] = Counter()
    for steps in leases():
        for number, (before, now) in enumerate(replayed(steps)):
            place = f"{steps[0]['test']}, log batch {number}"
            recorded, judged = decode_batch(before), decode_batch(now)
            assert encode(without_sessions(judged)) == encode(without_sessions(recorded)), place
            assert documents(judged, recorded) == documents(recorded, recorded), place
            for entry in decode_batch(before).entries:
                verdicts[getattr(entry, "verdict", type(entry).__name__)] += 1

    counted = {kind: verdicts[kind] for kind in ("accepted", "refused", "held", "CoordinationEntry")}
    assert counted == {"accepted": 239, "refused": 30, "held": 5, "CoordinationEntry": 11}


def test_the_contract_has_the_recorded_hash() -> None:
    assert load_contract().hash.hex() == CONTRACT_HASH
