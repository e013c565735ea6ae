"""The line that says what a packet contains."""

import pytest
from tests.support.traffic.packets import make_idea, make_start

from apc_cli.commands.session_running import LONGEST, gist_of
from apc_contracts.payloads.by_type import (
    AnswerOutcome,
    AnswerSpec,
    ClaimPayload,
    DecisionPayload,
    MessagePayload,
    Payload,
    Result,
    SignalPayload,
)
from apc_contracts.payloads.session_signals import TaskSessionSpec
from apc_contracts.vocabulary import Signal

PAID = Result.model_validate({"schema": "shop.paid/1", "content": {"paid": 700}})


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (
            ClaimPayload(claim_id="c", hypothesis_id="h", text="trees win", confidence_pre=0.5, confidence_post=0.75),
            "trees win (confidence 0.5 → 0.75)",
        ),
        (
            DecisionPayload(
                decision_id="d", recommendation="pay", priority_distribution={}, next_actions=("DONE",), result=PAID
            ),
            'pay; then DONE; shop.paid/1 {"paid":700}',
        ),
        (
            MessagePayload.model_validate({"schema": "shop.order/1", "content": {"amount": 7}, "text": "one\nline"}),
            'one line; shop.order/1 {"amount":7}',
        ),
        (
            SignalPayload(signal=Signal.START, session=TaskSessionSpec(contract="task", members=("a", "b"))),
            "START; contract task, members a, b",
        ),
        (SignalPayload(signal=Signal.STOP, reason="late"), "STOP; late"),
        (
            SignalPayload(signal=Signal.ANSWER, answer=AnswerSpec(outcome=AnswerOutcome.DENIED, note="no")),
            "ANSWER; denied; no",
        ),
    ],
)
def test_the_words_of_a_payload(payload: Payload, said: str) -> None:
    assert gist_of(payload) == said


def test_a_start_of_research_names_its_swarms() -> None:
    assert gist_of(make_start().payload).startswith("START; swarm red: red-1; swarm blue: blue-1")


def test_what_is_cut_ends_with_an_ellipsis() -> None:
    said = gist_of(make_idea("long " * 100))
    assert len(said) == LONGEST
    assert said.endswith("…")


def test_nothing_in_it_acts_on_a_terminal() -> None:
    hostile = SignalPayload(
        signal=Signal.ANSWER, answer=AnswerSpec(outcome=AnswerOutcome.DENIED, note="a\x9b31m\u202e\x1b[2Jb\nc")
    )
    assert not set("\x9b\u202e\x1b\n") & set(gist_of(hostile))
