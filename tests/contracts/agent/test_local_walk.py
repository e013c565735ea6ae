"""The walk of a handler, derived from what the log says of its emissions."""

from hypothesis import given
from hypothesis import strategies as st

from apc_contracts.agent import INTRA_AGENT_MACHINE, Answer, walk_from_log
from apc_contracts.contract.contract import load_contract

MACHINE = load_contract().machine(INTRA_AGENT_MACHINE)
ANSWERS = st.lists(st.sampled_from(Answer), max_size=6)


@given(ANSWERS, st.booleans())
def test_every_walk_is_a_walk_of_the_machine(answers: list[Answer], has_failed: bool) -> None:
    steps = walk_from_log(MACHINE, answers, has_failed=has_failed)
    assert MACHINE.walk([step.event for step in steps])[1:] == tuple(step.to_state for step in steps)
    assert bool(steps) == bool(answers)


def test_where_each_answer_leaves_the_handler() -> None:
    ends = {answer: walk_from_log(MACHINE, [answer], has_failed=False)[-1].to_state for answer in Answer}
    assert ends == {
        Answer.TAKEN: "LOCAL_IDLE",
        Answer.REFUSED: "IDEA_SYNTHESIS",
        Answer.OPEN: "WAIT_FOR_ACK",
    }
    assert walk_from_log(MACHINE, [Answer.TAKEN], has_failed=True)[-1].to_state == "LOCAL_HALT"


def test_a_refused_idea_is_thought_over_and_sent_again() -> None:
    again = walk_from_log(MACHINE, [Answer.REFUSED, Answer.TAKEN], has_failed=False)
    assert [step.event for step in again].count("task_assigned") == 1
    assert again[-1].to_state == "LOCAL_IDLE"
