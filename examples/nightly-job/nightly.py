"""A nightly job: a bookkeeper asks the till for yesterday's orders, and sends one report, whatever dies in between."""

import datetime
from datetime import timedelta

from pydantic import BaseModel

from apc_agents import Agent, HandlerContext, Team, Tick, message

ORDERS = {"2026-11-23": [25.0, 480.0], "2026-11-24": [12.5]}
"""What was paid on each day; your database in a real shop."""


@message("day/1")
class Day(BaseModel):
    date: datetime.date


@message("takings/1")
class Takings(BaseModel):
    orders: int
    amount: float


@message("report/1")
class Report(BaseModel):
    date: datetime.date
    text: str


bookkeeper = Agent("bookkeeper", role="bookkeeper", swarm="shop")
till = Agent("till", role="till", swarm="shop")


@bookkeeper.every("15 2 * * *", timezone="Europe/Berlin", misfire="all", members=["till"], deadline=timedelta(hours=6))
async def night(tick: Tick, ctx: HandlerContext) -> None:
    await report(Day(date=tick.instant.date() - timedelta(days=1)), ctx)


@bookkeeper.on(Day)
async def by_hand(day: Day, ctx: HandlerContext) -> None:
    await report(day, ctx)


async def report(day: Day, ctx: HandlerContext) -> None:
    takings = await ctx.request(day, to="till", returns=Takings)
    text = f"{takings.orders} orders, {takings.amount:.2f} in all"

    async def send() -> str:  # once, also when the process dies after it: your mail server in a real shop
        return f"sent: {text}"

    await ctx.once("mail", send)
    await ctx.complete(Report(date=day.date, text=text))


@till.on(Day)
async def count(day: Day, ctx: HandlerContext) -> Takings:
    paid = ORDERS.get(day.date.isoformat(), [])
    return Takings(orders=len(paid), amount=sum(paid))


team = Team("nightly", agents=[bookkeeper, till], entry="bookkeeper", input=Day, contract="nightly.yml")
