"""What a frontend is shown, and that it is shown nothing else."""

from collections.abc import Iterator
from typing import Any

import orjson

from apc_minds.context import ComponentRenderer, ContextSession, ContextState, InMemoryContextStore, SessionConfig

SECRET = "You are Zebulon and your warmth is 0.73."
FORBIDDEN = ("prompt", "persona", "eigenvector", "linearity", "strategy", "summar", "droppable", "required", "zebulon")


async def _session() -> ContextSession:
    session = ContextSession("s-1", config=SessionConfig(max_tokens=400))
    await session.add_system_turn(SECRET)
    for number in range(10):
        await session.add_user_turn(f"question {number} " * 10)
        await session.add_assistant_turn(f"answer {number} " * 10)
    await session.add_system_turn("Zebulon, be brief.")
    return session


def _texts(value: Any) -> Iterator[str]:
    """Yield every key and every text of a JSON value."""
    if isinstance(value, dict):
        for key, inside in value.items():
            yield key
            yield from _texts(inside)
    elif isinstance(value, list):
        for inside in value:
            yield from _texts(inside)
    elif isinstance(value, str):
        yield value


async def test_the_props_are_those_of_the_protocol() -> None:
    session = ContextSession("s-1")
    turn = await session.add_user_turn("hello")
    assert (
        ComponentRenderer().render_chat(session)
        == session.render()
        == {
            "messages": [
                {
                    "id": "t1",
                    "role": "user",
                    "content": "hello",
                    "timestamp": turn.timestamp.isoformat(),
                    "isPreserved": True,
                }
            ],
            "pressure": 2 / 100_000,
            "status": "thinking",
            "canSend": True,
            "canCompress": True,
            "canClear": True,
        }
    )


async def test_nothing_of_the_server_is_in_the_props() -> None:
    session = await _session()
    session.build_prompt("assistant", {"warmth": 0.73}, ["Call yourself Zebulon."])
    props = orjson.loads(orjson.dumps(session.render()))
    assert set(props) == {"messages", "pressure", "status", "canSend", "canCompress", "canClear"}
    assert {key for message in props["messages"] for key in message} == {
        "id", "role", "content", "timestamp", "isPreserved",
    }  # fmt: skip
    for text in _texts(props):
        assert not [word for word in FORBIDDEN if word in text.lower()]
    contents = [message["content"] for message in props["messages"]]
    assert any("kept verbatim in memory" in content for content in contents), "a placeholder is shown"
    assert contents[-1].startswith("answer 9")


async def test_the_walk_finds_what_is_hidden() -> None:
    assert "you are zebulon" in "".join(_texts({"a": [{"b": SECRET}]})).lower()


async def test_the_status_tells_what_the_session_does() -> None:
    session = ContextSession("s-1", config=SessionConfig(max_tokens=200, auto_compress=False))
    assert (session.render()["status"], session.render()["canSend"]) == ("ready", True)
    await session.add_user_turn("go")
    assert session.render()["status"] == "thinking"
    await session.add_tool_turn("x" * 300)
    assert session.render()["status"] == "thinking"
    await session.add_assistant_turn("x" * 300)
    assert session.state is ContextState.PRESSURED
    assert (session.render()["status"], session.render()["canSend"]) == ("ready", False)
    await session.compress()
    assert (session.render()["status"], session.render()["canSend"]) == ("compressed", True)


async def test_the_props_tell_what_can_be_done_now() -> None:
    session = ContextSession("s-1", config=SessionConfig(max_tokens=200, auto_compress=False))

    def can() -> tuple[bool, bool, bool]:
        props = session.render()
        return props["canSend"], props["canCompress"], props["canClear"]

    assert can() == (True, False, False)
    await session.add_user_turn("go")
    assert can() == (True, True, True)
    await session.add_assistant_turn("x" * 300)
    await session.add_assistant_turn("x" * 300)
    assert can() == (False, True, True)
    await session.compress()
    assert can() == (True, True, True)
    await session.compress()
    assert session.state is ContextState.COMPRESSED
    await session.clear()
    assert can() == (True, False, False)


async def test_an_answer_that_a_compression_folded_was_an_answer() -> None:
    session = ContextSession("s-1")
    await session.add_user_turn("go")
    await session.add_system_turn("Take your time.")
    assert session.render()["status"] == "thinking", "what the system says is no answer"
    await session.add_assistant_turn("gone")
    await session.compress(0.0)
    assert [message["content"] for message in session.render()["messages"]] == ["go"], "the answer was dropped"
    assert session.render()["status"] == "compressed"
    await session.add_tool_turn("a result")
    await session.compress(0.0)
    assert session.render()["status"] == "thinking"
    await session.clear()
    assert session.render()["status"] == "ready"


async def test_a_restored_session_still_waits_for_its_answer() -> None:
    store = InMemoryContextStore()
    session = ContextSession("s-1", store=store)
    await session.add_user_turn("go")
    await session.save()
    assert (await ContextSession.open("s-1", store=store)).is_thinking
    stored = await store.load("s-1")
    assert stored is not None
    document = orjson.loads(stored[0])
    del document["awaits_answer"]
    await store.save("s-1", orjson.dumps(document), 1)
    assert not (await ContextSession.open("s-1", store=store)).is_thinking, "a document of before it was kept"
