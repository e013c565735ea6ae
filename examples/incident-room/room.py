"""An incident room: two investigators look, a fixer acts on what both found and a lead approved, a scribe reports."""

from datetime import timedelta
from pathlib import Path
from time import sleep
from typing import Literal

from pydantic import BaseModel

from apc_agents import Agent, HandlerContext, Role, Team, message

DONE = Path("done.txt")
"""What was done to the services, a line each; your deployment tool in a real room."""
TAKES = 0.0
"""Seconds that an action takes."""


@message("alert/1")
class Alert(BaseModel):
    service: str
    symptom: str


@message("finding/1")
class Finding(BaseModel):
    service: str
    suspect: Literal["deploy", "memory"]
    text: str


@message("action/1")
class Action(BaseModel):
    service: str
    kind: Literal["rollback", "restart"]
    risk: Literal["low", "high"]


@message("outcome/1")  # not a field of Action: the lead approves exactly what is emitted
class Outcome(BaseModel):
    text: str


@message("report/1")
class Report(BaseModel):
    service: str
    timeline: list[str]


logs = Agent("logs", role="logs", swarm="platform")
metrics = Agent("metrics", role="metrics", swarm="sre")
fixer = Agent("fixer", role="fixer", swarm="sre")
scribe = Agent("scribe", role="scribe", swarm="frontdesk")


@scribe.on(Alert)
async def open_incident(alert: Alert, ctx: HandlerContext) -> None:
    ctx.state.update(service=alert.service, timeline=[alert.symptom])
    await ctx.emit(alert, to=["logs", "metrics"])


@logs.on(Alert)
async def read_logs(alert: Alert, ctx: HandlerContext) -> None:
    suspect: Literal["deploy", "memory"] = "deploy" if "deploy" in alert.symptom else "memory"
    await ctx.emit(Finding(service=alert.service, suspect=suspect, text="412 errors since 10:58"), to="fixer")


@metrics.on(Alert)
async def read_metrics(alert: Alert, ctx: HandlerContext) -> None:
    suspect: Literal["deploy", "memory"] = "deploy" if "5xx" in alert.symptom else "memory"
    await ctx.emit(Finding(service=alert.service, suspect=suspect, text="p99 is 4.2 s"), to="fixer")


def act(action: Action) -> str:
    sleep(TAKES)
    with DONE.open("a", encoding="utf-8") as file:
        file.write(f"{action.kind} {action.service}\n")
    return f"receipt-{len(DONE.read_text(encoding='utf-8').splitlines())}"


@fixer.on(Finding)
async def fix(finding: Finding, ctx: HandlerContext) -> None:
    seen = ctx.state.setdefault("findings", {})
    seen[str(ctx.packet.packet_id)] = finding.suspect
    if len(seen) < 2:
        return
    ctx.cite(*seen)
    is_risky = set(seen.values()) == {"deploy"}
    kind, risk = ("rollback", "high") if is_risky else ("restart", "low")
    action = Action.model_validate({"service": finding.service, "kind": kind, "risk": risk})
    if is_risky:
        question = f"Roll back {action.service}? Both investigators suspect the deploy."
        approval = await ctx.ask(question, to=Role("lead"), about=action, timeout=timedelta(hours=1))
        if not approval.approved:
            await ctx.emit(Outcome(text=f"nothing done: {approval.note or approval.outcome}"), to="scribe")
            return
    packet = await ctx.emit(action, to="scribe")
    receipt = await ctx.once(action.kind, lambda: act(action), after=packet)  # only when the gate has accepted it
    await ctx.emit(Outcome(text=f"done, {receipt}"), to="scribe")


@scribe.on(Action)
async def note(action: Action, ctx: HandlerContext) -> None:
    ctx.state["timeline"].append(f"{action.kind} {action.service}")


@scribe.on(Outcome)
async def report(outcome: Outcome, ctx: HandlerContext) -> None:
    ctx.cite(ctx.packet)
    await ctx.complete(Report(service=ctx.state["service"], timeline=[*ctx.state["timeline"], outcome.text]))


team = Team(
    "incident-room", agents=[scribe, logs, metrics, fixer], entry="scribe", input=Alert, contract="incident.yml"
)
