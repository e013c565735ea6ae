"""`apc contract try`: the rules of a team on sessions that were judged without them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel
from tests.support.apc_command import ApcCommand

from apc_agents import Agent, HandlerContext, Team, message
from apc_client import TeamTestClient

RULES = """\
name: tried
extends: task
keep: {trial-order/1: [amount]}
counters:
  paid: {for: trial-receipt/1}
rules:
  - name: rests-on-the-order
    for: trial-receipt/1
    require: authors("trial-order/1", "amount") >= 1
  - name: paid-once
    for: trial-receipt/1
    require: count("paid") < 1
"""


@message("trial-order/1")
class TrialOrder(BaseModel):
    amount: int
    cited: bool


@message("trial-receipt/1")
class TrialReceipt(BaseModel):
    amount: int


def _shop() -> Team:
    cashier = Agent("cashier", role="cashier", swarm="shop")
    clerk = Agent("clerk", role="clerk", swarm="shop")

    @clerk.on(TrialReceipt)
    async def file(receipt: TrialReceipt, ctx: HandlerContext) -> None: ...

    @cashier.on(TrialOrder)
    async def pay(order: TrialOrder, ctx: HandlerContext) -> None:
        if order.cited:
            ctx.cite(ctx.packet)
            await ctx.emit(TrialReceipt(amount=order.amount), to="clerk", requires_ack=True)
            ctx.cite(ctx.packet)
        await ctx.complete(TrialReceipt(amount=order.amount + 1))

    return Team("shop", agents=[cashier, clerk], entry="cashier", input=TrialOrder)


@pytest.fixture
def apc(tmp_path: Path) -> Iterator[ApcCommand]:
    yield ApcCommand(tmp_path)


async def test_rules_are_tried_on_what_happened(postgres_url: str, tmp_path: Path, apc: ApcCommand) -> None:
    (tmp_path / "tried.yml").write_text(RULES)
    async with TeamTestClient(_shop(), database_url=postgres_url, folder=tmp_path / "data") as client:
        await client.run(TrialOrder(amount=7, cited=True))
        await client.run(TrialOrder(amount=8, cited=False))

    tried = apc("contract", "try", "tried.yml", "--since", "1d", given={"APC_DATABASE_URL": postgres_url})

    lines = tried.stdout.splitlines()
    assert tried.returncode == 1, tried.stderr
    assert lines[-1].endswith("would have been different, in 2 sessions")
    would_be = [line.partition("would be ")[2] for line in lines[:-1]]
    # Of the first session the message fits; its result has another amount. The second has no evidence.
    assert would_be == ["refused RULE_FAILED rests-on-the-order"] * 2
