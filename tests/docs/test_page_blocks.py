"""Every Python block of the documentation runs: by the test of its page, or here, with the names that it uses."""

import importlib
import re
import textwrap
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from apc_agents import AgentTestClient
from apc_bus.database import open_pool
from apc_client import TeamTestClient
from apc_contracts import ClaimPayload, ExpectedImpact, IdeaPayload, MessagePayload, SignalPayload

from .test_links import ROOT, pages
from .test_python_blocks import BLOCK

BY_THEIR_TESTS = {
    "README.md": "tests/acceptance/test_readme.py",
    "docs/how-to/mcp.md": "tests/docs/test_mcp_page.py",
    "docs/how-to/teams.md": "tests/docs/test_teams_page.py",
    "docs/how-to/timers.md": "tests/docs/test_timers_page.py",
    "docs/research/first-agent.md": "tests/docs/test_tutorial.py",
    "docs/research/models.md": "tests/docs/test_models_page.py",
    "docs/tutorial/team.md": "tests/docs/test_tutorial.py",
}
"""Pages whose blocks another test runs."""

BEGINNING = """
import asyncio
from datetime import UTC, datetime, timedelta
from typing import Literal

from pydantic import BaseModel

from apc_agents import Agent, EffectUnknown, HandlerContext, Retry, Role, Team, message


@message("question/1")
class Question(BaseModel):
    text: str


@message("answer/1")
class Answer(BaseModel):
    text: str


desk = Agent("desk", role="desk", swarm="support")
"""

IDEA = IdeaPayload(
    method_id="ridge-1",
    intent="a regularised baseline",
    assumptions=(),
    required_capabilities=(),
    expected_impact=ExpectedImpact(quality_gain=0.1, cost_change=0.0, risk_change=0.0),
    failure_modes=(),
)

Stage = Callable[..., Any]


def blocks_of(page: str) -> list[str]:
    """Return the Python blocks of a page."""
    return [textwrap.dedent(found["code"]) for found in BLOCK.finditer((ROOT / page).read_text(encoding="utf-8"))]


def module_of(name: str, *parts: str) -> Any:
    """Return a module with this text, from the folder of the test."""
    Path(f"{name}.py").write_text("\n\n".join((BEGINNING, *parts)))
    return importlib.import_module(name)


def handler(*blocks: str, agent: str = "desk", taken: str = "Question") -> str:
    """Return a handler with these blocks as its body."""
    body = textwrap.indent("\n".join(blocks), "    ")
    return f"@{agent}.on({taken})\nasync def handle(given: {taken}, ctx: HandlerContext) -> None:\n{body}"


async def asked(module: Any) -> AgentTestClient:
    """Let the module's desk handle a question; return the client, for what it has emitted."""
    async with AgentTestClient(module.desk) as client:
        await client.send(module.Question(text="why"))
        await client.settled()
    return client


async def contracts(blocks: list[str]) -> None:
    client = await asked(module_of("contracts_page", handler(*blocks)))
    start, finding = client.emitted
    assert (start.payload_as(SignalPayload).session.contract, finding.payload_as(MessagePayload).schema_id) == (
        "task",
        "finding/1",
    )


async def lifecycle(blocks: list[str]) -> None:
    page = module_of(
        "lifecycle_page",
        "from apc_contracts import IdeaPayload, Packet, PacketType",
        handler(*blocks, taken="PacketType.IDEA").replace("given: PacketType.IDEA", "given: Packet[IdeaPayload]"),
    )
    async with AgentTestClient(page.desk) as client:
        await client.send(IDEA)
        await client.settled()
    assert client.emitted[0].payload_as(SignalPayload).signal == "SYNC"


APPROVALS = """
from datetime import date
from decimal import Decimal

from pydantic import Field


@message("change/1")
class Change(BaseModel):
    title: str


@message("outcome/1")
class Outcome(BaseModel):
    text: str


@message("action/1")
class Action(BaseModel):
    kind: str
    service: str


@message("opinion/1")
class Opinion(BaseModel):
    is_safe: bool


releaser = Agent("releaser", role="releaser", swarm="release")
security = Agent("security", role="security", swarm="release")
scribe = Agent("scribe", role="scribe", swarm="release")
shipped = []
paid = []


@security.on(Question)
async def judge(question: Question, ctx: HandlerContext) -> Opinion:
    return Opinion(is_safe=True)


@scribe.on(Action)
async def note(action: Action, ctx: HandlerContext) -> None: ...


def build_it() -> str:
    return "b7"


def ship_it() -> None:
    shipped.append("b7")


def pay(amount: Decimal) -> None:
    paid.append(amount)


team = Team("release", agents=[releaser, security, scribe], entry="releaser", input=Change)
waits = Team("waits", agents=[desk, security, scribe], entry="desk", input=Question)
"""


async def approvals(blocks: list[str], url: str) -> None:
    ended = "await ctx.complete(Outcome(text=f'{approval.outcome}, {opinion.is_safe}'))"
    head, _, teams = APPROVALS.partition("team = ")
    release, about, model, *others = blocks
    page = module_of("approvals_page", head, release, model, handler(about, *others, ended), f"team = {teams}")
    people = {"ida": "lead", "max": "release-manager"}
    async with TeamTestClient(page.team, people=people, database_url=url, folder=Path("one")) as client:
        session = await client.start(page.Change(title="parser"))
        assert (await client.question(session)).text == "Ship build b7?"
        await client.answer(session, approved=True)
        assert (await session.result(timeout=30)).text == "approved by max: no note"
        assert page.shipped == ["b7"]
    async with TeamTestClient(page.waits, people=people, database_url=url, folder=Path("two")) as client:
        session = await client.start(page.Question(text="?"))
        assert await client.answer(session, approved=True) == "ida"
        refund = page.Refund(amount=Decimal("80.50"), due=date(2026, 12, 31))
        assert await client.answer(session, approved=True, answer=refund) == "ida"
        assert await client.answer(session, approved=True) == "max"
        assert page.paid == [Decimal("80.50")]
        assert (await session.result(timeout=30)).text == "approved, True"


EFFECTS = """
from uuid import UUID


@message("payment/1")
class Payment(BaseModel):
    euros: int


@message("receipt/1")
class Receipt(BaseModel):
    id: str


@message("action/1")
class Action(BaseModel):
    order: str


@message("outcome/1")
class Outcome(BaseModel):
    receipt: str


class Bank:
    def __init__(self) -> None:
        self.charges: dict[UUID, str] = {}
        self.is_slow = False

    async def charge(self, euros: int, *, reference: UUID) -> str:
        self.charges[reference] = f"r-{euros}"
        if self.is_slow:
            raise TimeoutError
        return self.charges[reference]

    async def find(self, reference: UUID) -> str | None:
        return self.charges.get(reference)


class Shop:
    def refund(self, order: str, key: UUID) -> dict[str, str]:
        return {"id": f"of {order}"}


bank, shop = Bank(), Shop()
cashier = Agent("cashier", role="cashier", swarm="shop")


def refund() -> dict[str, str]:
    return {"id": "r-1"}
"""


async def effects(blocks: list[str]) -> None:
    page = module_of("effects_page", EFFECTS, blocks[0], handler(blocks[1], "ctx.state['made'] = receipt"), blocks[2])
    async with AgentTestClient(page.cashier) as client:
        assert (await client.send(page.Payment(euros=100))).payload.content == {"id": "r-100"}
        assert (await client.send(page.Action(order="A-17"))) is not None
        assert client.emitted[-1].payload_as(MessagePayload).content == {"receipt": "of A-17"}
    async with AgentTestClient(page.desk) as client:
        await client.send(page.Question(text="?"))
        assert await client.state() == {"made": {"id": "r-1"}}


async def faststream(blocks: list[str]) -> None:
    team = "team = Team('shop', agents=[desk], entry='desk')"
    page = module_of("faststream_page", team, *blocks)
    assert page.app.broker is page.broker
    async with AgentTestClient(page.desk) as client:
        answer = await client.send(page.Question(text="why"))
    assert answer is not None
    said = answer.payload_as(MessagePayload).content["text"]
    assert str(said).endswith("you asked 'why'. Your desk")


FRAMEWORKS = """
from typing import Any

from tests.minds.joined.openai_fake import FakeModel, call, outputs, said


def think(instructions: str | None, items: list[Any]) -> list[Any]:
    given = outputs(items)
    return [said(given[-1].splitlines()[1])] if given else [call("refund_order", '{"order": "O-7"}', "call-1")]


class Shop:
    is_open = True
    refunds: list[str] = []

    async def refund(self, order: str) -> str:
        self.refunds.append(order)
        return f"refunded {order}"


shop, model = Shop(), FakeModel(think)
"""
MAIL = """
mails: list[str] = []


def mail(invoice: str) -> str:
    mails.append(invoice)
    if len(mails) == 3:
        raise TimeoutError
    return invoice
"""


async def frameworks(blocks: list[str], url: str) -> None:
    """The blocks of other frameworks run in separate environments (tests/frameworks)."""
    tools, graph, sdk, *_, without_bus = blocks
    page = module_of("frameworks_page", FRAMEWORKS, tools, graph, sdk)
    for team, said in ((page.clerks, "O-7?"), (page.cashiers, "call refund_order?")):
        folder = Path(team.name)
        async with TeamTestClient(team, people={"ida": "lead"}, database_url=url, folder=folder) as client:
            session = await client.start(page.Question(text="O-7"))
            assert (await client.question(session)).text.endswith(said)
            await client.answer(session, approved=True)
            assert (await session.result(timeout=30)).text == "refunded O-7"
    assert page.shop.refunds == ["O-7", "O-7"]
    alone = module_of("without_a_bus", MAIL, without_bus)
    with pytest.raises(TimeoutError):
        alone.send_all(["a", "b", "c"])
    await alone.settle("c")
    alone.send_all(["a", "b", "c", "d"])
    assert alone.mails == ["a", "b", "c", "d"]
    alone.store.close()


async def artifacts(blocks: list[str]) -> None:
    parts = "async def several():\n    yield b'one'\n    yield b'two'"
    (block,) = blocks
    page = module_of(
        "artifacts_page", parts, handler("data, parts = b'one', several()", block, "ctx.state['n'] = len(data)")
    )
    async with AgentTestClient(page.desk) as client:
        await client.send(page.Question(text="?"))
        assert await client.state() == {"n": 6}


async def a2a(blocks: list[str]) -> None:
    page = module_of("a2a_page", *blocks)
    async with AgentTestClient(page.storyteller) as client:
        assert await client.send(page.A2AMessage(message_id="m-1", parts=[{"text": "tell me"}])) is not None
    assert client.emitted[0].payload_as(MessagePayload).schema_id == "a2a-artifact/1"


async def chat(blocks: list[str]) -> None:
    imports = "from apc_minds.llm import LLMAgent, Persona\nfrom apc_minds.tools import ToolRegistry"
    assert module_of("chat_page", imports, "tools = ToolRegistry()", *blocks).agent.role == "clerk"


ACTIONS = """
from apc_minds.action_context import ActionContext
from apc_minds.actions import ActionExecutor
from apc_minds.tools import ToolCall, ToolRegistry
from apc_contracts import IdeaPayload, Packet, PacketType, parse_response


async def read_from_my_archive(knowledge_id: str) -> str:
    return knowledge_id


answer = '{"status": "SUCCESS", "stop": true, "response": "done"}'
"""


async def actions(blocks: list[str]) -> None:
    (block,) = blocks
    page = module_of("actions_page", ACTIONS, block, "    ctx.state['observations'] = len(report.observations)")
    async with AgentTestClient(page.agent) as client:
        await client.send(IDEA)
        assert await client.state() == {"observations": 0}


OF_APC_1_0 = """
from apc_contracts import ClaimPayload, IdeaPayload, Packet, PacketType, ProofBundle

agent = desk
proof = ProofBundle(evidence_refs=("sha256:" + 64 * "0",))


def claim_about(idea: IdeaPayload) -> ClaimPayload:
    return ClaimPayload(
        claim_id="c-1", hypothesis_id=idea.method_id, text="it holds", confidence_pre=0.5, confidence_post=0.6
    )
"""


async def agent_context(blocks: list[str]) -> None:
    (block,) = blocks
    page = module_of("agent_context_page", OF_APC_1_0, block, "    ctx.state['made'] = context.session_id is not None")
    async with AgentTestClient(page.agent) as client:
        await client.send(IDEA)
        assert set((await client.state()).values()) <= {True}


async def agents(blocks: list[str]) -> None:
    (block,) = blocks
    page = module_of("agents_page", OF_APC_1_0, block)
    async with AgentTestClient(page.agent) as client:
        reply = await client.send(IDEA)
    assert reply is not None and reply.payload_as(ClaimPayload).claim_id == "c-1"


CONTEXT = """
from apc_minds.context import ContextSession, MemoryContextStore, emit_compressions


async def ask_a_model(prompt: object) -> str:
    return "1,184 km"
"""


async def context(blocks: list[str]) -> None:
    (block,) = blocks
    store = "store = MemoryContextStore(ctx.memory, 'desk')"
    page = module_of("context_page", CONTEXT, handler(store, block, "ctx.state['props'] = props"))
    async with AgentTestClient(page.desk) as client:
        await client.send(page.Question(text="?"))
        assert (await client.state())["props"]


async def memory(blocks: list[str], url: str) -> None:
    (block,) = blocks
    imports = "from apc_minds.memory import ConversationContext, ConversationMessage, PostgresMemoryStore"
    page = module_of(
        "memory_page", imports, f"async def example(pool):\n{textwrap.indent(block, '    ')}    return memory"
    )
    pool = await open_pool(url, max_size=2)
    try:
        kept = await (await page.example(pool)).retrieve_conversation("s-1")
    finally:
        await pool.close()
    assert kept is not None and [one.content for one in kept.messages] == ["How far is Rome?"]


async def python(blocks: list[str]) -> None:
    module_of("python_page", *blocks)


STAGES: dict[str, Stage] = {
    "docs/explanation/contracts.md": contracts,
    "docs/how-to/a2a.md": a2a,
    "docs/how-to/approvals.md": approvals,
    "docs/how-to/artifacts.md": artifacts,
    "docs/how-to/chat.md": chat,
    "docs/how-to/effects.md": effects,
    "docs/how-to/faststream.md": faststream,
    "docs/how-to/frameworks.md": frameworks,
    "docs/reference/actions.md": actions,
    "docs/reference/agent-context.md": agent_context,
    "docs/reference/context.md": context,
    "docs/reference/memory.md": memory,
    "docs/reference/python.md": python,
    "docs/research/lifecycle.md": lifecycle,
    "docs/specification/agents.md": agents,
}
WITH_A_LOG = {approvals, frameworks, memory}


@pytest.mark.parametrize("page", [page for page, stage in STAGES.items() if stage not in WITH_A_LOG])
async def test_the_python_of_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _begin(tmp_path, monkeypatch)
    await STAGES[page](blocks_of(page))


@pytest.mark.parametrize("page", [page for page, stage in STAGES.items() if stage in WITH_A_LOG])
async def test_the_python_of_a_page_runs_with_a_log(
    page: str, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _begin(tmp_path, monkeypatch)
    await STAGES[page](blocks_of(page), postgres_url)


def _begin(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)


def test_every_page_with_python_has_a_test_that_runs_it() -> None:
    with_python = {
        str(page.relative_to(ROOT))
        for page in pages()
        if BLOCK.search(page.read_text(encoding="utf-8")) and page.parts[len(ROOT.parts)] in ("docs", "README.md")
    }
    assert with_python == STAGES.keys() | BY_THEIR_TESTS.keys()
    assert [test for page, test in BY_THEIR_TESTS.items() if Path(page).name not in (ROOT / test).read_text()] == []


def test_no_block_leaves_something_out() -> None:
    """`...` as an argument is no Python that runs."""
    found = {page: [one for one in blocks_of(page) if re.search(r"[(=]\s*\.\.\.", one)] for page in STAGES}
    assert {page: one for page, one in found.items() if one} == {}


async def test_the_sql_of_see_and_search_runs(postgres_url: str) -> None:
    text = (ROOT / "docs/how-to/see-and-search.md").read_text(encoding="utf-8")
    (statement,) = re.findall(r"```sql\n(.*?)```", text, re.DOTALL)
    connection = await asyncpg.connect(postgres_url)
    try:
        assert await connection.fetch(statement) == []
    finally:
        await connection.close()
