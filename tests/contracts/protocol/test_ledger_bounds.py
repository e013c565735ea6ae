"""What a packet or a session may make the gate remember has a bound: beyond it, a refusal with a code."""

import pytest

from apc_contracts.contract.contract import Contract
from apc_contracts.protocol import ledger as protocol_ledger
from apc_contracts.protocol import ledger as protocol_lineage
from apc_contracts.protocol.effectiveness import DecayScope, Subject
from apc_contracts.protocol.ledger import JudgedTransfer, ProtocolLedger


def transfers(ledger: ProtocolLedger, *names: str, parents: tuple[str, ...] = (), task: str = "t") -> None:
    for name in names:
        ledger.recall_transfer(JudgedTransfer(name, parents, ("r", task), None))


@pytest.mark.parametrize("is_bounded", [False, True])
def test_protocols_are_forgotten_beyond_the_bound(
    contract: Contract, monkeypatch: pytest.MonkeyPatch, is_bounded: bool
) -> None:
    if is_bounded:
        monkeypatch.setattr(protocol_ledger, "PROTOCOLS_KEPT", 10)
    ledger = ProtocolLedger(contract.effectiveness)
    for number in range(100):
        transfers(ledger, f"p-{number}", "used")
    known = {subject.protocol_id for subject in ledger.tallies()}
    assert len(known) == (10 if is_bounded else 101)
    assert {"used", "p-99"} <= known
    assert ledger.tallies()[Subject(DecayScope.PROTOCOL, "used")].transfers == 100


def test_what_was_forgotten_can_be_named_again(contract: Contract, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol_ledger, "PROTOCOLS_KEPT", 10)
    ledger = ProtocolLedger(contract.effectiveness)
    transfers(ledger, "child", parents=("mother", "father"))
    for number in range(20):
        transfers(ledger, f"p-{number}")
    assert ledger.family("mother") == {"mother"} and ledger.roots("child") == {"child"}
    transfers(ledger, "child", parents=("mother",))
    assert ledger.family("mother") == {"mother", "child"}


def test_tasks_are_forgotten_beyond_the_bound(contract: Contract, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol_ledger, "TASKS_KEPT", 10)
    ledger = ProtocolLedger(contract.effectiveness)
    for number in range(100):
        transfers(ledger, "p", task=f"t-{number}")
        ledger.recall_eval(("r", f"t-{number}"), 0.5, None)
    tally = ledger.tallies()[Subject(DecayScope.PROTOCOL, "p")]
    assert len(ledger.scores()) == len(tally.tasks) == 10
    assert (tally.transfers, tally.scores.evals) == (100, 100), "the sums stay"


def test_roots_do_not_multiply(contract: Contract) -> None:
    ledger = ProtocolLedger(contract.effectiveness)
    for level in range(3):
        for number in range(50):
            parents = (
                tuple(f"p-{level - 1}-{one}" for one in range(50))
                if level
                else (f"root-{number}-a", f"root-{number}-b")
            )
            transfers(ledger, f"p-{level}-{number}", parents=parents)
    assert len(ledger.roots("p-2-0")) == protocol_lineage.ROOTS_KEPT
