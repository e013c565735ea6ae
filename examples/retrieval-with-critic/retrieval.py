"""Retrieval with a critic: an answer is given only with a quotation that the critic has found in the source."""

import re
from pathlib import Path

from pydantic import BaseModel

from apc_agents import Agent, HandlerContext, Team, message

LIBRARY = Path(__file__).parent / "library"
"""The texts: one .txt file for each source."""
TRIES = 3


@message("question/1")
class Question(BaseModel):
    text: str
    without: list[str] = []
    """Sources that the critic has refused."""


@message("passage/1")
class Passage(BaseModel):
    question: Question
    source: str | None
    quotation: str


@message("verdict/1")
class Verdict(BaseModel):
    passage: Passage
    source: str | None
    """The source that it accepts; None = it refuses the passage."""
    reason: str


@message("answer/1")
class Answer(BaseModel):
    quotation: str | None
    source: str | None
    refused: list[str]


asker = Agent("asker", role="asker", swarm="library")
retriever = Agent("retriever", role="retriever", swarm="library")
critic = Agent("critic", role="critic", swarm="library")


def words(text: str) -> set[str]:
    return set(re.findall(r"\w{4,}", text.lower()))


def sentences(source: str) -> list[str]:
    return re.split(r"(?<=[.!?])\s+", (LIBRARY / source).read_text(encoding="utf-8").strip())


@asker.on(Question)
async def ask(question: Question, ctx: HandlerContext) -> None:
    await ctx.emit(question, to="retriever")


@retriever.on(Question)
async def retrieve(question: Question, ctx: HandlerContext) -> None:
    """Find the sentence that shares most words with the question. Put your vector search here."""
    sources = sorted(file.name for file in LIBRARY.glob("*.txt") if file.name not in question.without)
    found = [(len(words(question.text) & words(one)), source, one) for source in sources for one in sentences(source)]
    score, source, quotation = max(found, default=(0, "", ""))
    passage = Passage(question=question, source=source if score else None, quotation=quotation if score else "")
    await ctx.emit(passage, to="critic")


@critic.on(Passage)
async def check(passage: Passage, ctx: HandlerContext) -> None:
    """Refuse a quotation that is not in its source or misses half of the question. Put your model here."""
    wanted, given = words(passage.question.text), words(passage.quotation)
    if passage.source is None:
        accepted, reason = False, "no source has a word of the question"
    elif passage.quotation not in sentences(passage.source):
        accepted, reason = False, f"{passage.source} does not say this"
    else:
        accepted, reason = (
            len(wanted & given) * 2 >= len(wanted),
            f"it has {len(wanted & given)} of {len(wanted)} words",
        )
    source = passage.source if accepted else None
    await ctx.emit(Verdict(passage=passage, source=source, reason=reason), to="asker")


@asker.on(Verdict)
async def decide(verdict: Verdict, ctx: HandlerContext) -> None:
    passage, refused = verdict.passage, verdict.passage.question.without
    ctx.cite(ctx.packet)
    if verdict.source is not None:
        await ctx.complete(Answer(quotation=passage.quotation, source=verdict.source, refused=refused))
    elif passage.source is None or len(refused) + 1 == TRIES:
        await ctx.complete(Answer(quotation=None, source=None, refused=[*refused, *filter(None, [passage.source])]))
    else:
        again = Question(text=passage.question.text, without=[*refused, passage.source])
        await ctx.emit(again, to="retriever")


team = Team("library", agents=[asker, retriever, critic], entry="asker", input=Question, contract="retrieval.yml")
