"""Every route answers generated requests as the OpenAPI document says: no 5xx, no other status."""

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.generation.case import Case
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tests.support.web.browser import served
from tests.web.conftest import TOKEN, WebBench

from apc_web.app import DOCUMENT, make_app
from apc_web.guard import AccessGuard

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
EXAMPLES = int(os.environ.get("APC_TEST_EXAMPLES", "2"))
"""Of each route, right and wrong, with known and with made-up names."""
PATIENCE = 30.0
Known = dict[str, Any]


@pytest.mark.page
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")
async def test_every_route_answers_as_its_document_says(told: WebBench) -> None:
    packet = (await told.get("/packets", session_id="s-1"))["items"][0]
    known = {"session_id": "s-1", "run_id": "run-1", "packet_id": packet["packet_id"], "seq": packet["seq"]}
    async with served(AccessGuard(make_app(told.services), TOKEN)) as url:
        failures = await asyncio.to_thread(lambda: list(_failures(url, known)))
    assert not failures, "\n\n".join(failures)


def _failures(url: str, known: Known) -> Iterator[str]:
    schema = schemathesis.openapi.from_dict(orjson.loads(DOCUMENT.read_bytes()))
    operations = [found.ok() for found in schema.get_all_operations() if isinstance(found, Ok)]
    assert len(operations) > 30
    for operation in operations:
        taken = {one.name for one in operation.path_parameters}
        for mode in GenerationMode:
            for path in [None, {name: value for name, value in known.items() if name in taken}]:
                if path == {}:
                    continue
                try:
                    _probe(operation, mode, path, url)
                except Exception as error:
                    yield f"{operation.method.upper()} {operation.path}: {error}"


def _probe(operation: APIOperation[Any, Any, Any, Any], mode: GenerationMode, path: Known | None, url: str) -> None:
    @settings(
        max_examples=EXAMPLES, deadline=None, database=None, derandomize=True, suppress_health_check=[*HealthCheck]
    )
    @given(case=operation.as_strategy(mode, path_parameters=path))
    def probe(case: Case[Any]) -> None:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        if operation.path.endswith(("/stream", "/events")):  # an answer that never ends
            given = case.as_transport_kwargs(base_url=url, headers=headers)
            with requests.request(**given, stream=True, timeout=PATIENCE) as answer:
                assert str(answer.status_code) in operation.responses.status_codes and answer.status_code < 500
        else:
            case.call_and_validate(base_url=url, headers=headers, checks=CHECKS, timeout=PATIENCE)

    probe()
