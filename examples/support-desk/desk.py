"""A support desk: a clerk looks the order up and proposes a refund, a person approves a large one, the cashier pays."""

from datetime import timedelta
from typing import Literal

from pydantic import BaseModel

from apc_agents import Agent, HandlerContext, Role, Team, message

ORDERS = {"A-1": 25.0, "A-2": 480.0}
"""What was paid; your database in a real desk."""
FREE_HAND = 100.0
"""A refund above this needs a person: by desk.yml, which the gate holds."""


@message("complaint/1")
class Complaint(BaseModel):
    order: str
    text: str


@message("refund/1")
class Refund(BaseModel):
    order: str
    amount: float


@message("paid/1")
class Paid(BaseModel):
    order: str
    amount: float
    receipt: str


@message("reply/1")
class Reply(BaseModel):
    outcome: Literal["refunded", "denied", "unknown order"]
    text: str


clerk = Agent("clerk", role="clerk", swarm="support")
cashier = Agent("cashier", role="cashier", swarm="support")


@clerk.on(Complaint)
async def propose(complaint: Complaint, ctx: HandlerContext) -> None:
    paid = ORDERS.get(complaint.order)
    if paid is None:
        await ctx.complete(Reply(outcome="unknown order", text=f"We have no order {complaint.order}."))
        return
    refund = Refund(order=complaint.order, amount=paid)
    if paid > FREE_HAND:
        approval = await ctx.ask(
            f"Refund {paid:.2f} for order {complaint.order}? The customer says: {complaint.text}",
            to=Role("support-lead"),
            about=refund,
            timeout=timedelta(hours=8),
        )
        if not approval.approved:
            await ctx.complete(Reply(outcome="denied", text=approval.note or "We cannot refund this order."))
            return
    await ctx.emit(refund, to="cashier")


@cashier.on(Refund)
async def pay(refund: Refund, ctx: HandlerContext) -> Paid:
    async def transfer() -> str:  # once, whatever dies: the key goes to your bank as its idempotency key
        return f"{refund.order}-{refund.amount:.2f}"

    return Paid(order=refund.order, amount=refund.amount, receipt=await ctx.once("transfer", transfer))


@clerk.on(Paid)
async def answer(paid: Paid, ctx: HandlerContext) -> None:
    await ctx.complete(Reply(outcome="refunded", text=f"{paid.amount:.2f} is on its way, receipt {paid.receipt}."))


team = Team("support", agents=[clerk, cashier], entry="clerk", input=Complaint, contract="desk.yml")
