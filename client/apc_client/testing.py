"""Testing a team as a whole, in this process, and the rules in the file of its contract."""

from collections.abc import Mapping
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self

from pydantic import BaseModel, JsonValue

from apc_agents.scheduling import Tick
from apc_agents.team import Team
from apc_bus.settings import BusSettings, DatabaseSettings
from apc_client.connecting import InProcessClient, connect_in_process
from apc_client.errors import ResultUnusable
from apc_client.run_names import TagValue
from apc_client.sending import until
from apc_client.session import ClientSession, SessionEvent
from apc_contracts.contract.collection import load_contracts
from apc_contracts.contract.overlay import load_overlay_file, read_overlay
from apc_contracts.errors import InputUnusable
from apc_contracts.replay.rule_tests import RuleTestResult, run_tests
from apc_log.queries.questions import QuestionRow

PATIENCE = timedelta(seconds=30)


class TeamTestClient:
    """Runs a team over its own log; the broker, database and contracts of the environment have no effect.

    ```python
    from apc_client import TeamTestClient


    @desk.on(Question)
    async def ask_lead(question: Question, ctx: HandlerContext) -> None:
        approval = await ctx.ask(question.text, to=Role("lead"), timeout=timedelta(hours=8))
        await ctx.complete(Answer(text=f"{approval.outcome} by {approval.by}: {approval.note}"))


    team = Team("support", agents=[desk], entry="desk", input=Question)
    async with TeamTestClient(team, people={"ida": "lead"}) as client:
        session = await client.start(Question(text="ship it?"))
        assert (await client.question(session)).text == "ship it?"
        await client.answer(session, approved=True, note="go")
        assert await session.result(timeout=30) == Answer(text="approved by ida: go")
        assert "ida" in [event.sender for event in await client.events(session)]
    ```
    Orchestrator, persister and agents are those of a deployment; only the broker is in memory. The log is a PostgreSQL
    in a temporary folder (extra `embedded`), which takes some seconds to start: use one client for several tests.

    Args:
        team: the team.
        people: the role of each person who can be asked, by id.
        contract: the file of the team's contract; needed where the team only names one that is not packaged.
        database_url: a database for the log, empty or of earlier tests; default a temporary one.
        folder: the data folder; default a temporary one.
    """

    def __init__(
        self,
        team: Team,
        *,
        people: Mapping[str, str] | None = None,
        contract: Path | str | None = None,
        database_url: str | None = None,
        folder: Path | None = None,
    ) -> None:
        self.team = team
        self._people = people or {}
        self._contract = contract
        self._database = DatabaseSettings.model_validate({"database_url": database_url})
        self._folder = folder
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Start everything; returns when every agent is ready.

        Raises:
            ContractInvalid: the file of the contract cannot be used; names the place.
            InputUnusable: the team names a contract whose file was not given.
            ClientError: as `apc_client.connect`, and its other errors.
        """
        async with AsyncExitStack() as stack:
            folder = self._folder or Path(stack.enter_context(TemporaryDirectory(prefix="apc-team-")))
            settings = BusSettings(amqp_url=None, data_dir=folder, contract=None, contracts=None)
            self.client: InProcessClient = await stack.enter_async_context(
                connect_in_process(settings, self._database, self._people)
            )
            await self._provide_contract()
            await self.client.run_team(self.team)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop everything; a temporary log is deleted."""
        await self._stack.aclose()

    async def _provide_contract(self) -> None:
        name = self.team.spec.contract
        if self._contract is not None:
            await self.client.register_schemas(self.team)
            await self.client.register_contract(self._contract)
        elif self.team.contract_file is not None:
            return
        if name not in (known := await self.client.contracts()):
            raise InputUnusable(
                f"team {self.team.name} has the contract {name!r}, this test knows {', '.join(known)}: give its file, "
                f'`Team(contract="{name}.json")` or `TeamTestClient(team, contract="{name}.json")`'
            )

    @property
    def agent_id(self) -> str:
        """The agent in whose name sessions are started: the sender of their input."""
        return self.client.agent_id

    async def start(
        self,
        content: BaseModel,
        *,
        key: str | None = None,
        run_id: str | None = None,
        metadata: Mapping[str, TagValue] | None = None,
    ) -> ClientSession:
        """Open a session and give the team's entry the input. Raises as `Client.start`.

        Args:
            content: a model that the team's entry takes.
            key: makes the start idempotent, as in `Client.start`.
            run_id: the run that it belongs to; default its own.
            metadata: tags of the run.
        """
        return await self.client.start(self.team, content, key=key, run_id=run_id, metadata=metadata)

    async def tick(self, agent_id: str, name: str, instant: datetime | None = None) -> ClientSession:
        """Fire a schedule of an agent, whatever its cron line says; return the session in which the Tick comes.

        Args:
            agent_id: one of the team's agents.
            name: of its schedule, by default that of the decorated function.
            instant: when the firing was due; default now.

        Raises:
            AgentError: no such agent, or it has no such schedule.
        """
        return await self.client.fire(self.team, agent_id, Tick(name=name, instant=instant or datetime.now(UTC)))

    async def run(self, content: BaseModel, *, timeout: float = PATIENCE.total_seconds()) -> Any:  # noqa: ASYNC109
        """Run one session and return its typed result. Raises as `start` and `ClientSession.result`.

        Args:
            content: a model that the team's entry takes.
            timeout: seconds.
        """
        return await (await self.start(content)).result(timeout=timeout)

    async def events(self, session: ClientSession) -> list[SessionEvent]:
        """Return what the log has of `session`, once it has ended."""
        return [event async for event in session.events()]

    async def question(self, session: ClientSession | None = None) -> QuestionRow:
        """Wait until a handler asks people; return the question that is due first.

        Args:
            session: whose question; default that of any.

        Raises:
            SessionHalted, ResultUnusable: the session ended, and nobody was asked.
            TimeoutError: 30 s passed.
        """
        session_id = None if session is None else session.session_id
        questions: list[QuestionRow] = []

        async def is_asked() -> bool:
            questions[:] = await self.client.questions(session_id)
            if not questions and session is not None and await session.has_ended():
                await session.outcome()
                raise ResultUnusable(f"session {session_id} closed without a question")
            return bool(questions)

        await until(is_asked, PATIENCE)
        return questions[0]

    async def answer(
        self,
        session: ClientSession | None = None,
        *,
        approved: bool,
        note: str | None = None,
        person: str | None = None,
        answer: BaseModel | Mapping[str, JsonValue] | None = None,
    ) -> str:
        """Answer the question that is due first, once there is one; return who answered. Raises as `Client.answer`.

        Args:
            session: whose question; default that of any.
            approved: whether the person approves.
            note: what the handler gets beside the answer.
            person: who answers; default the only one of those asked.
            answer: the fields of a question with `returns=`: its model, or JSON.
        """
        question = await self.question(session)
        return await self.client.answer(question.packet_id, approved=approved, note=note, person=person, answer=answer)


def run_rule_tests(team: Team) -> tuple[RuleTestResult, ...]:
    """Run the `tests` in the file of a team's rules by the gate's own rules; return what came of each.

    It takes milliseconds and needs no log. `extends` is looked up among the packaged contracts.

    ```python
    from pathlib import Path

    from apc_client import run_rule_tests

    Path("support.yml").write_text(
        '''
    name: support
    extends: task
    rules:
      - {name: short, for: answer/1, require: size(content.text) < 10, say: Answers are short.}
    tests:
      - packet: {schema: answer/1, from: desk, content: {text: because}}
        accepted: true
      - packet: {schema: answer/1, from: desk, content: {text: because of this and that}}
        refused: short
    '''
    )


    @desk.on(Question)
    async def reply(question: Question, ctx: HandlerContext) -> Answer:
        return Answer(text="because")


    team = Team("support", agents=[desk], entry="desk", contract="support.yml")
    assert all(one.has_passed for one in run_rule_tests(team))
    ```

    Args:
        team: with `contract=` a file.

    Raises:
        InputUnusable: the team names no file.
        ContractInvalid: the file cannot be used; names the place.
    """
    file = team.contract_file
    if file is None:
        raise InputUnusable(f'team {team.name} has no file of rules: give it one, `Team(contract="rules.yml")`')
    contract = load_overlay_file(file, load_contracts().named, team.documents)
    return run_tests(contract, read_overlay(file.read_bytes()).tests, team.documents)
