"""What clients of a door see: tasks through gate and log, questions, cancel, lists."""

import base64
from typing import Any

import pytest
from tests.doors.a2a.conftest import Behind, RpcError, desk, state_of, teller


async def test_a_message_is_a_task_through_gate_and_log(behind: Behind) -> None:
    async with behind(desk()) as running:
        sent = await running.ida.send({"text": "apples"}, context_id="x", contextId="trip-1")
        task = await running.ida.task(sent["id"])
    assert state_of(task) == state_of(sent) == "COMPLETED" and task["contextId"] == "trip-1"
    (result,) = task["artifacts"]
    assert result["name"] == "a2a-receipt/1" and result["parts"][0] == {"text": "paid for apples"}
    assert result["parts"][1]["data"] == {"text": "paid for apples", "paid": 1.0}
    (first,) = task["history"]
    assert first["messageId"] == "m-1" and first["parts"] == [{"text": "apples"}] and first["role"] == "ROLE_USER"


async def test_a_question_to_the_caller_is_input_required_and_its_message_the_answer(behind: Behind) -> None:
    async with behind(desk()) as running:
        ida, bob = running.ida, running.bob
        asked = await ida.send({"data": {"text": "a boat", "amount": 700}})
        assert state_of(asked) == "INPUT_REQUIRED"
        assert asked["status"]["message"]["parts"] == [{"text": "Pay 700?"}]
        with pytest.raises(RpcError) as unknown:
            await bob.task(asked["id"])
        with pytest.raises(RpcError) as unanswered:
            await bob.send({"text": "yes"}, taskId=asked["id"])
        assert unknown.value.code == unanswered.value.code == -32001
        done = await ida.send({"text": "yes, pay"}, message_id="m-2", taskId=asked["id"])
        assert state_of(done) == "COMPLETED" and done["artifacts"][0]["parts"][0] == {"text": "paid for a boat"}
        assert [(one["role"], one["messageId"]) for one in done["history"]][::2] == [
            ("ROLE_USER", "m-1"),
            ("ROLE_USER", "m-2"),
        ]
        with pytest.raises(RpcError, match="the task has ended") as ended:
            await ida.send({"text": "yes"}, taskId=asked["id"])
        assert ended.value.code == -32004
        unclear = await ida.send({"data": {"text": "a ship", "amount": 701}})
        denied = await ida.send({"text": "which ship?"}, taskId=unclear["id"])
        assert denied["artifacts"][0]["parts"][0] == {"text": "not paid: which ship?"}, "only yes approves"


async def test_a_question_for_fields_takes_them(behind: Behind) -> None:
    async with behind(desk()) as running:
        asked = await running.ida.send({"text": "gift"})
        assert asked["status"]["message"]["parts"][1]["data"]["answerSchema"]["required"] == ["street"]
        with pytest.raises(RpcError, match="the answer needs a data part with street"):
            await running.ida.send({"url": "https://example.com"}, taskId=asked["id"])
        with pytest.raises(RpcError, match="street") as refused:
            await running.ida.send({"data": {"street": 7}}, taskId=asked["id"])
        assert refused.value.code == -32602
        done = await running.ida.send({"data": {"street": "Elm St"}}, taskId=asked["id"])
        assert done["artifacts"][0]["parts"][0] == {"text": "sent to Elm St"}


async def test_cancel_ends_a_task_once(behind: Behind) -> None:
    async with behind(desk()) as running:
        asked = await running.ida.send({"data": {"text": "a boat", "amount": 700}})
        with pytest.raises(RpcError) as foreign:
            await running.bob.call("CancelTask", id=asked["id"])
        assert foreign.value.code == -32001
        assert state_of(await running.ida.call("CancelTask", id=asked["id"])) == "CANCELED"
        with pytest.raises(RpcError) as twice:
            await running.ida.call("CancelTask", id=asked["id"])
        assert twice.value.code == -32002


async def test_a_failed_task_and_an_input_that_does_not_fit(behind: Behind) -> None:
    async with behind(desk()) as running:
        failed = await running.ida.send({"text": "broken"})
        assert state_of(failed) == "FAILED"
        assert failed["status"]["message"]["parts"][0]["text"].startswith("HANDLER_FAILED clerk")
        with pytest.raises(RpcError, match=r"does not fit the input of this agent: amount: Input should be") as refused:
            await running.ida.send({"data": {"text": "a", "amount": "many"}})
        assert refused.value.code == -32602
        with pytest.raises(RpcError, match=r"message\.parts: too large .* send less") as large:
            await running.ida.send({"text": "x" * 140_000})
        assert large.value.code == -32602
        assert (await running.ida.call("ListTasks"))["totalSize"] == 1


async def test_lists_are_the_callers_own_by_state_context_and_page(behind: Behind) -> None:
    async with behind(desk()) as running:
        ida = running.ida
        done = [await ida.send({"text": f"apple {n}"}, contextId="trip") for n in range(3)]
        asked = await ida.send({"data": {"text": "a boat", "amount": 700}})
        await running.bob.send({"text": "pears"})
        every = await ida.call("ListTasks")
        assert (
            every["totalSize"] == 4 and every["tasks"][0]["id"] == asked["id"] and "artifacts" not in every["tasks"][0]
        )
        first = await ida.call("ListTasks", contextId="trip", pageSize=2, includeArtifacts=True)
        rest = await ida.call("ListTasks", contextId="trip", pageSize=2, pageToken=first["nextPageToken"])
        assert [one["id"] for one in first["tasks"] + rest["tasks"]] == [one["id"] for one in reversed(done)]
        assert first["totalSize"] == 3 and not rest.get("nextPageToken") and first["tasks"][0]["artifacts"]
        waiting = await ida.call("ListTasks", status="TASK_STATE_INPUT_REQUIRED")
        assert [one["id"] for one in waiting["tasks"]] == [asked["id"]] and waiting["totalSize"] == 1
        assert (await ida.call("ListTasks", status="TASK_STATE_WORKING"))["tasks"] == []
        ended = await ida.call("ListTasks", status="TASK_STATE_COMPLETED", pageSize=2)
        more = await ida.call("ListTasks", status="TASK_STATE_COMPLETED", pageSize=2, pageToken=ended["nextPageToken"])
        assert len(ended["tasks"]) == 2 and len(more["tasks"]) == 1 and ended["totalSize"] == 3
        with pytest.raises(RpcError, match="pageToken is not one that this agent gave"):
            await ida.call("ListTasks", pageToken="bm9uZQ")
        with pytest.raises(RpcError, match="this contextId belongs to somebody else"):
            await running.bob.send({"text": "pears"}, contextId="trip")


async def test_messages_as_they_are_with_artifacts_a_message_and_a_no(behind: Behind) -> None:
    async with behind(teller()) as running:
        told = await running.ida.send({"text": "a story"})
        assert state_of(told) == "COMPLETED" and told["status"]["message"]["parts"] == [{"text": "a story"}]
        (story,) = told["artifacts"]
        assert story["parts"] == [{"text": "Once "}, {"text": "upon a time"}]
        assert (await running.ida.send({"text": "hello"}))["parts"] == [{"text": "hello too"}]
        no = await running.ida.send({"text": "no"})
        assert state_of(no) == "REJECTED" and no["status"]["message"]["parts"] == [{"text": "we do not"}]
        raw = {"raw": base64.b64encode(b"seven bytes").decode(), "filename": "a.bin", "mediaType": "text/plain"}
        kept = (await running.ida.send(raw))["history"][0]["parts"][0]
        assert kept.get("filename") == "a.bin" and "raw" not in kept


async def test_a_repeated_message_is_one_task_where_the_client_asks_for_it(behind: Behind) -> None:
    async with behind(desk()) as running:
        ida = running.ida
        assert (await ida.send({"text": "apples"}))["id"] != (await ida.send({"text": "apples"}))["id"]
        ida.http.headers["A2A-Extensions"] = "urn:apc-bus:a2a:repeats:v1"
        once = [await ida.send({"text": "pears"}, message_id="m-7") for _ in range(3)]
        other = await ida.send({"text": "plums"}, message_id="m-7")
        assert len({one["id"] for one in once}) == 1 and other["id"] != once[0]["id"]
        running.bob.http.headers["A2A-Extensions"] = "urn:apc-bus:a2a:repeats:v1"
        assert (await running.bob.send({"text": "pears"}, message_id="m-7"))["id"] != once[0]["id"]
        assert (await ida.call("ListTasks"))["totalSize"] == 4


async def test_the_same_over_http_and_json_and_for_clients_of_the_version_before(behind: Behind) -> None:
    async with behind(desk()) as running:
        http = running.ida.http
        message: dict[str, Any] = {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": "apples"}]}
        sent = await http.post("/a2a/rest/message:send", json={"message": message})
        task_id = sent.json()["task"]["id"]
        got = await http.get(f"/a2a/rest/tasks/{task_id}")
        assert state_of(got.json()) == "COMPLETED"
        assert (await http.get("/a2a/rest/tasks?pageSize=1")).json()["totalSize"] == 1
        unknown = await http.get("/a2a/rest/tasks/nothing")
        assert unknown.status_code == 404 and unknown.json()["error"]["details"][0]["reason"] == "TASK_NOT_FOUND"
        old = {"kind": "message", "messageId": "m-2", "role": "user", "parts": [{"kind": "text", "text": "pears"}]}
        body = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {"message": old}}
        answer = await http.post("/a2a/jsonrpc", json=body, headers={"A2A-Version": ""})
        assert answer.json()["result"]["status"]["state"] == "completed"
