"""A client that runs everything in its own process: the teams it starts, and the people it answers for."""

import asyncio
import json
import os
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest
import structlog
from pydantic import BaseModel, SecretStr
from tests.support.waiting import until

import apc_client
from apc_agents import Agent, EmitRefused, HandlerContext, Role, Team, message
from apc_bus.settings import BusSettings, DatabaseSettings
from apc_cli.commands.session_running import print_events
from apc_client import SessionHalted, SessionRefused, TeamTestClient, run_rule_tests
from apc_contracts.contract.contract import task_contract
from apc_contracts.errors import ContractInvalid, InputUnusable

REFERS_TO = "SELECT refers_to FROM apc_log.agent_packets WHERE packet_id = $1"


@message("order/1")
class Order(BaseModel):
    amount: int


@message("receipt/1")
class ShopReceipt(BaseModel):
    paid: int
    by: str


def shop(agent_id: str = "cashier") -> Team:
    cashier = Agent(agent_id, role="cashier", swarm="shop")

    @cashier.on(Order)
    async def pay(order: Order, ctx: HandlerContext) -> None:
        by = "nobody"
        if order.amount > 100:
            approval = await ctx.ask(f"Pay {order.amount}?", to=Role("manager"), timeout=timedelta(hours=1))
            if not approval.approved:
                raise ValueError(f"denied: {approval.note}")
            by = approval.by
        await ctx.complete(ShopReceipt(paid=order.amount, by=by))

    return Team("shop", agents=[cashier], entry=agent_id)


async def test_two_people_approve_what_is_emitted_then(postgres_url: str, tmp_path: Path) -> None:
    """The result rests on the order and on both answers: the gate knows each of them."""
    cashier = Agent("cashier", role="cashier", swarm="shop")

    @cashier.on(Order)
    async def pay(order: Order, ctx: HandlerContext) -> None:
        ctx.cite(ctx.packet)
        hour = timedelta(hours=1)
        approval = await ctx.ask("Pay?", to=Role("manager"), timeout=hour, about=order, approvals=2)
        by = ", ".join(sorted(one.by for one in approval.approvals))
        await ctx.complete(ShopReceipt(paid=order.amount if approval.approved else 0, by=by))

    team, people = Team("shop", agents=[cashier], entry="cashier"), {"alice": "manager", "bob": "manager"}
    async with TeamTestClient(team, people=people, database_url=postgres_url, folder=tmp_path) as client:
        session = await client.start(Order(amount=700))
        assert (await client.question(session)).content == {"schema": "order/1", "content": {"amount": 700}}
        for person in people:
            await client.answer(session, approved=True, person=person)
        assert await session.result(timeout=30) == ShopReceipt(paid=700, by="alice, bob")
        (decision,) = [one for one in await client.events(session) if one.packet_type == "DECISION"]
        asked = await client.start(Order(amount=800))
        await client.answer(asked, approved=False, person="bob")
        assert await asked.result(timeout=30) == ShopReceipt(paid=0, by="bob")
    connection = await asyncpg.connect(postgres_url)
    named = await connection.fetchval(REFERS_TO, decision.packet_id)
    await connection.close()
    assert len(named) == 3


async def test_who_is_asked_again_is_told_of_a_denial(postgres_url: str, tmp_path: Path) -> None:
    cashier = Agent("cashier", role="cashier", swarm="shop")

    @cashier.on(Order)
    async def pay(order: Order, ctx: HandlerContext) -> None:
        hour, by = timedelta(hours=1), "nobody"
        for amount in (order.amount, order.amount, 1):
            about = Order(amount=amount)
            by = (await ctx.ask(f"Pay {amount}?", to=Role("manager"), timeout=hour, about=about)).by
        for text in ("Now?", "Later?", "Now?"):  # without a proposal the text is what is denied
            await ctx.ask(text, to=Role("manager"), timeout=hour)
        await ctx.complete(ShopReceipt(paid=order.amount, by=by))

    team, people = Team("shop", agents=[cashier], entry="cashier"), {"alice": "manager", "bob": "manager"}
    async with TeamTestClient(team, people=people, database_url=postgres_url, folder=tmp_path) as client:

        async def shows(text: str, denial: str) -> None:
            """The log writer tells of an answer within seconds."""

            async def is_shown() -> bool:
                return [(one.text, one.denial) for one in await client.client.questions()] == [(text, denial)]

            await until(is_shown)

        session = await client.start(Order(amount=700))
        asked = await client.question(session)
        assert (asked.denied_by, asked.denial) == ((), "")
        await client.answer(session, approved=False, person="bob")
        await shows("Pay 700?", "the same was denied before by bob")
        await client.answer(session, approved=True, person="alice")
        assert (await client.question(session)).denied_by == (), "another content"
        await client.answer(session, approved=True, person="bob")
        await shows("Now?", "")
        await client.answer(session, approved=False, person="alice")
        await shows("Later?", "")
        await client.answer(session, approved=True, person="bob")
        await shows("Now?", "the same was denied before by alice")
        await client.answer(session, approved=True, person="bob")
        assert await session.result(timeout=30) == ShopReceipt(paid=700, by="bob")


async def test_a_question_that_reaches_nobody_halts_the_session(postgres_url: str, tmp_path: Path) -> None:
    """The delivery has ended before the refusal comes: the handler fails on it, and the session does not wait on."""
    async with TeamTestClient(shop(), database_url=postgres_url, folder=tmp_path) as client:
        session = await client.start(Order(amount=700))
        with pytest.raises(SessionHalted, match="HANDLER_FAILED cashier could not handle MESSAGE"):
            await session.result(timeout=30)


async def test_a_contract_whose_file_was_not_given(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says how a test gets it; APC_CONTRACTS has no effect on a test."""
    contracts = tmp_path / "contracts"
    contracts.mkdir()
    (contracts / "own.json").write_text(json.dumps(json.loads(task_contract().body) | {"name": "own"}))
    monkeypatch.setenv("APC_CONTRACTS", str(contracts))
    team = Team("shop", agents=shop().agents, entry="cashier", contract="own")
    with pytest.raises(InputUnusable, match=r'this test knows .*`TeamTestClient\(team, contract="own.json"\)`'):
        async with TeamTestClient(team, database_url=postgres_url, folder=tmp_path):
            pass


async def test_the_file_of_a_teams_contract_is_registered_with_it(postgres_url: str, tmp_path: Path) -> None:
    strict = json.loads(task_contract().body) | {"name": "strict"}
    strict["limits"]["packet_bytes"] = 65_536
    (tmp_path / "strict.json").write_text(json.dumps(strict))
    team = Team("shop", agents=shop().agents, entry="cashier", contract=str(tmp_path / "strict.json"))
    async with TeamTestClient(team, database_url=postgres_url, folder=tmp_path / "data") as client:
        assert await client.run(Order(amount=7)) == ShopReceipt(paid=7, by="nobody")
        assert "strict" in await client.client.contracts()


INCIDENT = """
name: incident
extends: task
rules:
  - name: rests-on-the-order
    for: {schema: receipt/1, type: DECISION}
    require: cited("order/1") >= 1
    say: A receipt rests on its order.
    remedy: Cite the order.
"""


def paying_with_proof() -> Agent:
    """Return an agent that cites the order when the gate has refused it once."""
    cashier = Agent("cashier", role="cashier", swarm="shop")

    @cashier.on(Order)
    async def pay(order: Order, ctx: HandlerContext) -> None:
        try:
            await ctx.complete(ShopReceipt(paid=1, by="nobody"), requires_ack=True)
        except EmitRefused as refused:
            ctx.cite(ctx.packet)
            by = f"{refused.code} {refused.rule}: {refused.remedy}"
            await ctx.complete(ShopReceipt(paid=order.amount, by=by))

    return cashier


async def test_the_rules_of_a_team_refuse_and_say_the_remedy(postgres_url: str, tmp_path: Path) -> None:
    (tmp_path / "incident.yml").write_text(INCIDENT)
    team = Team("shop", agents=[paying_with_proof()], entry="cashier", contract=str(tmp_path / "incident.yml"))
    async with TeamTestClient(team, database_url=postgres_url, folder=tmp_path / "data") as client:
        receipt = ShopReceipt(paid=7, by="RULE_FAILED rests-on-the-order: Cite the order.")
        assert await client.run(Order(amount=7)) == receipt


def test_a_team_without_a_file_has_no_rules_to_test() -> None:
    with pytest.raises(InputUnusable, match=r'team shop has no file of rules: give it one, `Team\(contract="rules'):
        run_rule_tests(shop())


SMALL = """
name: small
extends: task
rules:
  - name: small-orders
    for: order/1
    require: content.amount <= 100
    say: An order is at most 100.
    remedy: Split the order.
"""


async def test_an_input_that_a_rule_refuses_has_the_words_of_the_rule(postgres_url: str, tmp_path: Path) -> None:
    (tmp_path / "small.yml").write_text(SMALL)
    team = Team("shop", agents=shop().agents, entry="cashier", contract=str(tmp_path / "small.yml"))
    async with TeamTestClient(team, database_url=postgres_url, folder=tmp_path / "data") as client:
        with pytest.raises(SessionRefused) as refused:
            await client.start(Order(amount=700))
        sound = await client.start(Order(amount=7))
        assert await sound.result(timeout=30) and await sound.doubts() == ()
    assert (refused.value.code, refused.value.remedy) == ("RULE_FAILED", "Split the order.")
    assert str(refused.value).endswith("An order is at most 100. Remedy: Split the order.")


APPROVED = """
name: approved
extends: task
rules:
  - name: two-managers
    for: {schema: receipt/1, type: DECISION}
    require: approved_by("manager", 2)
    remedy: Ask two managers about exactly this.
"""


async def test_an_approval_binds_exactly_what_was_shown(postgres_url: str, tmp_path: Path) -> None:
    """One changed field is refused; what two people have seen is accepted."""
    (tmp_path / "approved.yml").write_text(APPROVED)
    refused: list[EmitRefused] = []
    cashier = Agent("cashier", role="cashier", swarm="shop")

    @cashier.on(Order)
    async def pay(order: Order, ctx: HandlerContext) -> None:
        receipt = ShopReceipt(paid=order.amount, by="both")
        hour = timedelta(hours=1)
        await ctx.ask("Pay?", to=Role("manager"), timeout=hour, about=receipt, approvals=2)
        try:
            await ctx.complete(receipt.model_copy(update={"by": "me"}), requires_ack=True)
        except EmitRefused as error:
            refused.append(error)
        await ctx.complete(receipt)

    people, file = {"alice": "manager", "bob": "manager"}, str(tmp_path / "approved.yml")
    team = Team("shop", agents=[cashier], entry="cashier", contract=file)
    async with TeamTestClient(team, people=people, database_url=postgres_url, folder=tmp_path / "data") as client:
        session = await client.start(Order(amount=700))
        for person in people:
            await client.answer(session, approved=True, person=person)
        assert await session.result(timeout=30) == ShopReceipt(paid=700, by="both")
    (error,) = refused
    assert (error.code, error.rule, error.requires) == ("RULE_FAILED", "two-managers", 'approved_by("manager", 2)')
    assert str(error).endswith(". Remedy: Ask two managers about exactly this.")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "extends: tusk",
            r"rules\.yml invalid at extends: line 2, column 10: there is no contract 'tusk': register it",
        ),
        ("extends: task\nrulez: []", r"rules\.yml invalid at rulez: line 3, column 8: there is no 'rulez'"),
        (
            "extends: task\nonly: [odrer/1]",
            r"rules\.yml invalid at .*: there is no schema odrer/1: do you mean order/1",
        ),
    ],
)
async def test_an_overlay_that_cannot_be_used_names_its_file_and_place(
    postgres_url: str, tmp_path: Path, line: str, said: str
) -> None:
    (tmp_path / "rules.yml").write_text(f"name: rules\n{line}\n")
    team = Team("shop", agents=shop().agents, entry="cashier", contract=str(tmp_path / "rules.yml"))
    with pytest.raises(ContractInvalid, match=said):
        async with TeamTestClient(team, database_url=postgres_url, folder=tmp_path / "data"):
            pass


async def test_a_file_that_is_no_contract_names_the_place(postgres_url: str, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text('{"name": "bad"}')
    team = Team("shop", agents=shop().agents, entry="cashier", contract=str(tmp_path / "bad.json"))
    with pytest.raises(ContractInvalid, match=r"bad\.json"):
        async with TeamTestClient(team, database_url=postgres_url, folder=tmp_path / "data"):
            pass


async def test_a_team_is_tested_as_one_with_its_people(postgres_url: str, tmp_path: Path) -> None:
    people = {"alice": "manager"}
    async with TeamTestClient(shop(), people=people, database_url=postgres_url, folder=tmp_path) as client:
        assert await client.run(Order(amount=7)) == ShopReceipt(paid=7, by="nobody")
        session = await client.start(Order(amount=700))
        assert (await client.question(session)).text == "Pay 700?"
        assert await client.answer(session, approved=True, note="go") == "alice"
        assert await session.result(timeout=30) == ShopReceipt(paid=700, by="alice")
        assert [one.packet_type for one in await client.events(session) if one.sender == "cashier"] == [
            "SIGNAL",
            "DECISION",
        ]
        denied = await client.start(Order(amount=800))
        await client.answer(approved=False, note="too much")
        with pytest.raises(SessionHalted, match=r"HANDLER_FAILED cashier .* order/1 .*: ValueError: denied: too much"):
            await denied.result(timeout=30)
        assert await client.client.questions() == []


async def test_the_events_of_a_session_say_what_was_asked_and_answered(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each may be written by an agent or a stranger: nothing of it acts on the terminal."""
    hostile = "too much\x9b31m\u202e\x1b[2J"
    monkeypatch.setenv("APC_DATABASE_URL", postgres_url)
    people = {"alice": "manager"}
    async with TeamTestClient(shop(), people=people, database_url=postgres_url, folder=tmp_path) as client:
        session = await client.start(Order(amount=700))
        await client.answer(session, approved=False, note=hostile)
        with pytest.raises(SessionHalted):
            await session.result(timeout=30)
        capsys.readouterr()
        await print_events(session.session_id, as_json=True)
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert not set("\x9b\u202e\x1b").intersection("".join(printed))
    said = [json.loads(line) for line in printed]
    told = [(one["sender"], one["schema"], one["content"]) for one in said if one["sender"] in ("cashier", "alice")]
    assert told[:2] == [
        ("cashier", None, {"question": "Pay 700?"}),
        ("alice", None, {"outcome": "denied", "note": hostile}),
    ]
    assert told[2] == (
        "cashier",
        None,
        {"error_code": "HANDLER_ERROR", "message": f"ValueError: denied: {hostile}"},
    )


async def test_several_wait_for_one_result_and_one_of_them_gives_up(postgres_url: str, tmp_path: Path) -> None:
    """The result comes from the log: who stops waiting takes nothing away, and may ask again later."""
    people = {"alice": "manager"}
    async with TeamTestClient(shop(), people=people, database_url=postgres_url, folder=tmp_path) as client:
        session = await client.start(Order(amount=700))
        waiting = [asyncio.create_task(session.result(timeout=30))]
        for _ in range(2):
            attached = client.client.session(session.session_id, client.team)
            waiting.append(asyncio.create_task(attached.result(timeout=30)))
        await client.question(session)
        gone = waiting.pop()
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        assert await client.answer(session, approved=True, note="go") == "alice"
        paid = ShopReceipt(paid=700, by="alice")
        assert await asyncio.gather(*waiting) == [paid, paid]
        assert await client.client.session(session.session_id, client.team).result(timeout=30) == paid


async def test_one_process_runs_one_agent_of_an_id(postgres_url: str, tmp_path: Path) -> None:
    settings = BusSettings(amqp_url=None, data_dir=tmp_path)
    database = DatabaseSettings(database_url=SecretStr(postgres_url))
    first = shop()
    async with apc_client.connect(settings, database) as bus:
        assert await (await bus.start(first, Order(amount=1))).result(timeout=30) == ShopReceipt(paid=1, by="nobody")
        assert await (await bus.start(first, Order(amount=2))).result(timeout=30) == ShopReceipt(paid=2, by="nobody")
        with pytest.raises(InputUnusable, match="another agent 'cashier' runs in this process"):
            await bus.start(shop(), Order(amount=1))
        with pytest.raises(InputUnusable, match=f"another system uses {tmp_path}, process {os.getpid()} "):
            async with apc_client.connect(settings, database):
                pass


async def test_people_and_urls_that_cannot_be_used(postgres_url: str, tmp_path: Path) -> None:
    local = BusSettings(amqp_url=None, data_dir=tmp_path)
    database = DatabaseSettings(database_url=SecretStr(postgres_url))
    with pytest.raises(InputUnusable, match="people: role: "):
        async with apc_client.connect(local, database, people={"alice": ""}):
            pass
    remote = BusSettings(amqp_url=SecretStr("amqp://127.0.0.1:1/"), data_dir=tmp_path)
    with pytest.raises(InputUnusable, match="set APC_DATABASE_URL as well"):
        async with apc_client.connect(remote, DatabaseSettings(database_url=None)):
            pass
    with pytest.raises(InputUnusable, match="apc agent add NAME --person"):
        async with apc_client.connect(remote, database, people={"alice": "manager"}):
            pass


async def test_what_the_process_leaves_is_told_and_goes_on_in_the_next(
    postgres_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    structlog.reset_defaults()  # a test that captures logs sets it up
    settings = BusSettings(amqp_url=None, data_dir=tmp_path)
    database = DatabaseSettings(database_url=SecretStr(postgres_url))
    async with apc_client.connect(settings, database, people={"alice": "manager"}) as bus:
        session = await bus.start(shop(), Order(amount=700), key="order-1")
        await until(lambda: bus.questions(session.session_id))
    assert "sessions_left_open" in caplog.text
    assert capsys.readouterr().out == "", "it belongs to the program"
    async with apc_client.connect(settings, database, people={"alice": "manager"}) as bus:
        again = await bus.start(shop(), Order(amount=700), key="order-1")
        assert again.session_id == session.session_id
        (question,) = await bus.questions(session.session_id)
        assert await bus.answer(question.packet_id, approved=True) == "alice"
        assert await again.result(timeout=30) == ShopReceipt(paid=700, by="alice")


def test_ordinary_code_runs_a_team(postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APC_DATABASE_URL", postgres_url)
    monkeypatch.setenv("APC_DATA_DIR", str(tmp_path))
    monkeypatch.delenv("APC_AMQP_URL", raising=False)
    assert apc_client.run(shop(), Order(amount=3), timeout=60) == ShopReceipt(paid=3, by="nobody")
