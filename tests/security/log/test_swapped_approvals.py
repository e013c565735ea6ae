"""A bundle of a run in which somebody swaps the approval of an action: the offline verifier says which entry it is.

The chain proposal, question, answer, action is in the log; a lead denied the risky action, and approved another one.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.contracts.session.room import REGISTERED, Room, registry, rules
from tests.orchestrator.shard.test_loading import JudgedSimulation
from tests.support.log import LogBench

from apc_contracts import Packet
from apc_contracts.judging.verdict import VerdictKind
from apc_log import offline_verifier
from apc_log.batch import LOG_BATCH_TYPE, encode
from apc_persister.evidence.checkpoint import Signer, load_signer
from apc_persister.evidence.documents import bundle_lines


@dataclass
class Exported:
    """The bundle of the run, who signs it, and the answers in it."""

    lines: list[dict[str, Any]]
    signer: Signer
    approved: Packet
    denied: Packet
    folder: Path

    def line_of(self, packet: Packet) -> int:
        """Return where the entry of a packet stands in the file."""
        packets = (at for at, one in enumerate(self.lines) if "body" in one)
        return next(at for at in packets if _body(self.lines[at])["packet_id"] == str(packet.packet_id))

    def seq_of(self, packet: Packet) -> int:
        """Return the number of its entry in the log."""
        return int(json.loads(self.lines[self.line_of(packet)]["entry"])[3])

    def check(self) -> int:
        """Return the exit code of `apc log check` for the file as it is now."""
        path = self.folder / "run.bundle"
        path.write_text("".join(json.dumps(one) + "\n" for one in self.lines))
        return offline_verifier.main([str(path), "--key", str(self.signer.public_key(0))])


def _body(line: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(b64decode(line["body"]))
    return found


@pytest.fixture
async def exported(bench: LogBench, tmp_path: Path) -> Exported:
    contract = rules('approved_by("lead")')
    now = datetime(2026, 1, 5, 9, 30, tzinfo=UTC)
    simulation = JudgedSimulation(contract, registry=registry(), schemas=REGISTERED, now=now)
    room = Room(simulation)
    approved = room.approved("ida", note="mend")
    denied = room.accept(room.answer(room.ask(note="drop"), "ida", approves=False))
    room.accept(room.action(risk="high", note="mend"))
    assert room.action(risk="high", note="drop")[1].kind is VerdictKind.REFUSED
    await bench.gate.open()
    for number, batch in enumerate(simulation.batches, 1):
        await bench.gate.publish(encode(replace(batch.seal(0, number), epoch=1)), LOG_BATCH_TYPE)
    await bench.write()
    signer = load_signer(bench.settings)
    async with bench.pool.acquire() as connection:
        made = bundle_lines(connection, approved.trace.run_id, signer, [contract.body])
        lines = [json.loads(line) async for line in made]
    return Exported(lines, signer, approved, denied, tmp_path)


def _say_approved(bundle: Exported) -> Packet:
    """Write another outcome into the bytes of the denial."""
    line = bundle.lines[bundle.line_of(bundle.denied)]
    body = _body(line)
    body["payload"]["answer"]["outcome"] = "approved"
    line["body"] = b64encode(json.dumps(body).encode()).decode()
    return bundle.denied


def _say_approved_in_the_entry_too(bundle: Exported) -> Packet:
    """Write it into the bytes, and their hash into the entry."""
    line = bundle.lines[bundle.line_of(bundle.denied)]
    before = sha256(b64decode(line["body"])).hexdigest()
    _say_approved(bundle)
    line["entry"] = line["entry"].replace(before, sha256(b64decode(line["body"])).hexdigest())
    return bundle.denied


def _take_the_bytes_of_another(bundle: Exported) -> Packet:
    """Put the bytes of the approval in the place of those of the denial."""
    source, target = (bundle.lines[bundle.line_of(one)] for one in (bundle.approved, bundle.denied))
    target["body"] = source["body"]
    return bundle.denied


def _take_the_entry_of_another(bundle: Exported) -> Packet:
    """Put the whole approval, which is in the log, in the place of the denial."""
    source, target = bundle.line_of(bundle.approved), bundle.line_of(bundle.denied)
    bundle.lines[target] = dict(bundle.lines[source])
    return bundle.approved


def _leave_out(bundle: Exported) -> Packet:
    """Leave the denial out, so that nobody asks about it."""
    del bundle.lines[bundle.line_of(bundle.denied)]
    bundle.lines[-1]["entries"] -= 1
    return bundle.denied


def _leave_out_a_log(bundle: Exported) -> Packet:
    """Hand over one of the two logs that hold entries of the run, as their key signs."""
    head = bundle.lines[0]["checkpoints"][0]
    known = offline_verifier.parse_contents(head["contents"], bundle.signer.public_key(0))
    head["contents"] = bundle.signer.sign_contents(0, known.size, known.run_id, (0, 1), known.ranges)
    return bundle.denied


SWAPS: dict[str, tuple[Callable[[Exported], Packet], str, str]] = {
    "another outcome": (_say_approved, "_check_body", "the bytes beside entry {0} are not those that it was made of"),
    "another entry": (_say_approved_in_the_entry_too, "_check_entry", "entry {0} is not in the log of "),
    "bytes of another": (_take_the_bytes_of_another, "_check_body", "the bytes beside entry {0} are not those"),
    "entry of another": (_take_the_entry_of_another, "_check_turn", "entry {0} of shard 0 stands twice in the bundle"),
    "log left out": (_leave_out_a_log, "_check_logs", "/1 holds entries of the run, and its checkpoint is missing"),
    "left out": (_leave_out, "_check_turn", "entry {0} of shard 0 is of the run and missing in the bundle"),
}
"""What is done -> the check that finds it, and what that says of the entry."""
UNGUARDED: dict[str, dict[str, Callable[..., Any]]] = {
    "_check_logs": {"_check_logs": lambda given, origins: None},
    "_check_body": {"_check_body": lambda item, entry: None},
    "_check_entry": {"_check_entry": lambda item, head: offline_verifier.parse_entry(item["entry"].encode())},
    "_check_turn": {
        "_check_turn": lambda entry, origin, awaited: None,
        "_end_bundle": lambda end, rest, entries, awaited: None,
    },
}
"""A check -> what takes its place."""


@pytest.mark.parametrize("is_guarded", [False, True])
@pytest.mark.parametrize("swap", SWAPS)
async def test_a_swapped_approval_is_refused(
    exported: Exported,
    swap: str,
    is_guarded: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    act, guard, said = SWAPS[swap]
    assert exported.check() == 0, capsys.readouterr().err
    number = exported.seq_of(exported.denied if swap != "entry of another" else exported.approved)
    capsys.readouterr()
    if not is_guarded:
        for name, instead in UNGUARDED[guard].items():
            monkeypatch.setattr(offline_verifier, name, instead)

    act(exported)
    code = exported.check()

    if is_guarded:
        origin = exported.lines[1]["origin"]
        assert code == 1
        assert said.format(number).replace("shard 0", origin) in capsys.readouterr().err
    else:
        assert code == 0, capsys.readouterr().err


def _of_old(exported: Exported, text: str) -> str:
    """Return signed contents as release 0.1.0 signed them: without the logs of the run."""
    contents = offline_verifier.parse_contents(text, exported.signer.public_key(0))
    return exported.signer.sign_contents(0, contents.size, contents.run_id, (), contents.ranges)


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_an_old_bundle_is_checked_as_far_as_it_shows(
    exported: Exported, capsys: pytest.CaptureFixture[str], is_guarded: bool
) -> None:
    """One of version 2 without a shard is not told from a whole one: the exit code says so."""
    head = exported.lines[0]
    if is_guarded:
        head["version"] = 2
        item = head["checkpoints"][0]
        item["contents"] = _of_old(exported, item["contents"])
    assert exported.check() == (3 if is_guarded else 0)
    assert ("NOT SHOWN" in capsys.readouterr().err) is is_guarded
    if is_guarded:
        del exported.lines[exported.line_of(exported.denied)]
        assert exported.check() == 1
        assert "missing in the bundle" in capsys.readouterr().err


async def test_a_bundle_of_today_is_not_checked_as_an_old_one(
    exported: Exported, capsys: pytest.CaptureFixture[str]
) -> None:
    exported.lines[0]["version"] = 2
    assert exported.check() == 1
    assert "not signed contents" in capsys.readouterr().err
