"""A handler that asks people, in one process: gate, log, worker, and a person who answers."""

from apc_log.queries.questions import list_questions

from .office import Office, asking


async def test_a_handler_goes_on_with_the_first_answer_in_another_process(office: Office) -> None:
    """The gate and the worker that asked are gone when the answer comes; the second answer is refused."""
    async with office.house.gate():
        await office.begin()
        await office.hire("bob")
        async with office.worker(asking()):
            question = await office.question()
            assert (question.asker, question.may_answer, question.text) == ("red-1", ("alice", "bob"), "Ship?")
    async with office.house.gate():
        assert await office.answer("alice", question) == ("accepted", None, None)
        second = await office.answer("bob", question, "denied")
        assert second == ("refused", "NOT_AUTHORIZED", "trace.parent_packet_id")
        assert await list_questions(office.house.pool) == []
        async with office.worker(asking()):
            assert await office.decided() == "approved by alice: go, asked 1"
