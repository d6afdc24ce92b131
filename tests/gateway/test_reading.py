"""Pages of records: by offset and by cursor, in each form, and the wait for what comes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pyarrow as pa
import pytest

from tests.gateway.world import World, world


async def filled(at: World, partitions: int = 1, records: int = 10) -> None:
    await at.http.post("/v1/topics", json={"name": "t", "partitions": partitions})
    given = [
        {"value": str(number), "partition": number % partitions, "tag": "eu" if number % 2 else "us"}
        for number in range(records)
    ]
    answer = await at.http.post("/v1/topics/t/records", json={"records": given})
    assert answer.status_code == 200, answer.text


async def test_pages_of_a_partition_go_on_at_next_offset() -> None:
    async with world() as at:
        await filled(at)
        values, start = [], "earliest"
        while True:
            page = (await at.http.get(f"/v1/topics/t/partitions/0/records?from={start}&limit=4")).json()
            values += [record["value"] for record in page["records"]]
            assert (page["log_start"], page["high_watermark"]) == (0, 10)
            start = str(page["next_offset"])
            if page["at_end"]:
                break
        assert values == [str(number) for number in range(10)]
        page = (await at.http.get("/v1/topics/t/partitions/0/records?from=latest")).json()
        assert (page["records"], page["next_offset"], page["at_end"]) == ([], 10, True)
        page = (await at.http.get("/v1/topics/t/partitions/0/records?from=1h&tags=eu")).json()
        assert [record["value"] for record in page["records"]] == ["1", "3", "5", "7", "9"]
        assert page["next_offset"] == 10


async def test_pages_of_a_topic_go_on_at_their_cursor() -> None:
    async with world() as at:
        await filled(at, partitions=3, records=30)
        values, cursor = [], ""
        for _ in range(20):
            page = (await at.http.get(f"/v1/topics/t/records?limit=7{cursor}")).json()
            values += [record["value"] for record in page["records"]]
            cursor = f"&cursor={page['next']}"
            if page["at_end"]:
                break
        assert sorted(values, key=int) == [str(number) for number in range(30)]
        named = (await at.http.get("/v1/topics/t/records?partitions=1")).json()
        assert {record["partition"] for record in named["records"]} == {1}


async def test_pages_go_down_from_the_newest_record() -> None:
    async with world() as at:
        await filled(at, partitions=2, records=20)
        values, cursor = [], ""
        for _ in range(20):
            page = (await at.http.get(f"/v1/topics/t/records?order=newest&limit=6{cursor}")).json()
            values += [int(record["value"]) for record in page["records"]]
            cursor = f"&cursor={page['next']}"
            if page["at_end"]:
                break
        assert sorted(values) == list(range(20))
        for parity in (0, 1):
            assert [value for value in values if value % 2 == parity] == list(range(18 + parity, -1, -2))
        page = (await at.http.get("/v1/topics/t/partitions/1/records?order=newest&limit=3")).json()
        assert ([each["value"] for each in page["records"]], page["next_offset"]) == (["19", "17", "15"], 7)
        page = (await at.http.get("/v1/topics/t/partitions/1/records?order=newest&from=7&limit=1")).json()
        assert [each["value"] for each in page["records"]] == ["13"]
        assert at.gateway.service.memory.held_bytes == 0


async def test_what_was_read_can_be_written_again() -> None:
    record = {
        "key_base64": "/w==",
        "value": 'a "quoted" \\ text\n',
        "headers": [{"key": "h", "value": None}, {"key": "", "value_base64": "/w=="}],
        "tag": "eu",
        "timestamp": "2026-11-28T12:10:46.589054Z",
        "partition": 0,
    }
    async with world() as at:
        await at.http.post("/v1/topics", json={"name": "t", "partitions": 1})
        first = await at.http.post("/v1/topics/t/records", json={"records": [record]})
        assert first.status_code == 200, first.text
        [read] = (await at.http.get("/v1/topics/t/partitions/0/records")).json()["records"]
        assert {name: read[name] for name in record} == record
        assert (await at.http.post("/v1/topics/t/records", json={"records": [read]})).status_code == 200
        twice = (await at.http.get("/v1/topics/t/partitions/0/records")).json()["records"]
        assert [{**each, "offset": 0} for each in twice] == [read, read]


VALUES: list[tuple[bytes, str, dict[str, Any]]] = [
    (b"text", "auto", {"value": "text"}),
    (b"text", "base64", {"value_base64": "dGV4dA=="}),
    (b"text", "json", {"value": "text"}),
    (b'{"a":\n [1, 2]}', "json", {"value_json": {"a": [1, 2]}}),
    (b"\xff", "text", {"value_base64": "/w=="}),
    (b"\xff", "json", {"value_base64": "/w=="}),
    (b'"\xff"', "json", {"value_base64": "Iv8i"}),
    (b"[" * 100_000, "json", {"value": "[" * 100_000}),
    (b'"value":null', "json", {"value": '"value":null'}),
    (b"</script>\xe2\x80\xa8", "auto", {"value": "</script>\u2028"}),
    (b"", "auto", {"value": ""}),
]


async def test_forms_of_values() -> None:
    async with world() as at:
        await at.http.post("/v1/topics", json={"name": "t", "partitions": 1})
        for value, _, _ in VALUES:
            headers = {"Content-Type": "application/octet-stream", "LedgerMQ-Key": "%22value%22:null"}
            answer = await at.http.post("/v1/topics/t/records", content=value, headers=headers)
            assert answer.status_code == 200, answer.text
        for offset, (value, form, wanted) in enumerate(VALUES):
            url = f"/v1/topics/t/partitions/0/records?from={offset}&limit=1&values={form}"
            for accept in ("application/json", "application/x-ndjson"):
                answer = await at.http.get(url, headers={"Accept": accept})
                assert answer.headers["content-type"] == accept
                [line] = (
                    answer.json()["records"]
                    if accept.endswith("/json")
                    else map(json.loads, answer.text.split("\n")[:-1])
                )
                assert {name: line[name] for name in line if name.startswith("value")} == wanted, value[:20]
                assert line["key"] == '"value":null'
            answer = await at.http.get(url, headers={"Accept": "application/octet-stream"})
            assert answer.content == value
            assert answer.headers["content-disposition"] == "attachment"
            assert "sandbox" in answer.headers["content-security-policy"]
        answer = await at.http.get("/v1/topics/t/records", headers={"Accept": "application/vnd.apache.arrow.stream"})
        table = pa.ipc.open_stream(answer.content).read_all()
        assert table.column("value").to_pylist() == [value for value, _, _ in VALUES]
        assert table.column("offset").to_pylist() == list(range(len(VALUES)))
        assert (await at.http.get("/v1/topics/t/records", headers={"Accept": "text/html"})).status_code == 406


async def test_a_read_waits_for_what_comes_and_no_longer() -> None:
    async with world() as at:
        await filled(at, records=1)
        url = "/v1/topics/t/partitions/0/records?from=latest&wait_ms=20000"
        waiting = asyncio.create_task(at.http.get(url))
        async with asyncio.timeout(30):
            while not at.gateway.service.streams.count:
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.3)
        await at.http.post("/v1/topics/t/records", json={"records": [{"value": "new"}]})
        async with asyncio.timeout(15):
            page = (await waiting).json()
        assert [record["value"] for record in page["records"]] == ["new"]
        short = (await at.http.get("/v1/topics/t/partitions/0/records?from=latest&wait_ms=100")).json()
        assert short["records"] == []


async def test_a_reader_that_leaves_is_noticed_and_a_stop_answers_waiting_reads() -> None:
    async with world() as at:
        await filled(at, records=1)
        url = "/v1/topics/t/partitions/0/records?from=latest&wait_ms=50000"
        leaving, staying = asyncio.create_task(at.http.get(url)), asyncio.create_task(at.http.get(url))
        async with asyncio.timeout(30):
            while at.gateway.service.streams.count < 2:
                await asyncio.sleep(0.02)
        leaving.cancel()
        async with asyncio.timeout(30):
            while at.gateway.service.streams.count > 1:
                await asyncio.sleep(0.02)
        at.gateway.service.stopping.set()
        async with asyncio.timeout(20):
            assert (await staying).json()["records"] == []


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("/v1/topics/t/partitions/0/records?from=99", 416),
        ("/v1/topics/t/partitions/1/records", 404),
        ("/v1/topics/t/partitions/x/records", 404),
        ("/v1/topics/free/partitions/0/records", 404),
        ("/v1/topics/t/records?from=5", 400),
        ("/v1/topics/t/records?cursor=c1.AAAA", 400),
        ("/v1/topics/t/records?partitions=0,1", 404),
        ("/v1/topics/t/records?filter=price%20%3E", 400),
        ("/v1/topics/t/records?filter=a&tags=b", 400),
        ("/v1/topics/t/records?limit=100000", 400),
        ("/v1/topics/t/records?wait_ms=60000", 400),
        ("/v1/topics/t/records?from=yesterday", 400),
        ("/v1/topics/t/records?from=2026-11-28T12:10:46", 400),
        ("/v1/topics/t/records?from=2026-11-28T12:10:46%2B01:00", 200),
    ],
)
async def test_wrong_places(path: str, wanted: int) -> None:
    async with world() as at:
        await filled(at, records=1)
        answer = await at.http.get(path)
        assert answer.status_code == wanted, answer.text
        if wanted == 416:
            assert (answer.json()["log_start"], answer.json()["high_watermark"]) == (0, 1)


async def test_a_page_is_bounded_in_bytes() -> None:
    async with world(page_bytes_max=1_000_000) as at:
        await at.http.post("/v1/topics", json={"name": "t", "partitions": 1})
        for _ in range(6):
            await at.http.post("/v1/topics/t/records", json={"records": [{"value": "x" * 90_000}] * 10})
        page = (await at.http.get("/v1/topics/t/records?limit=1000")).json()
        assert 2 <= len(page["records"]) <= 30
        assert not page["at_end"]
        assert at.gateway.service.memory.held_bytes == 0


async def test_a_topic_of_many_partitions_is_read_by_those_that_are_named() -> None:
    """However many there are: a cursor for all would be larger than a header may be."""
    async with world(cluster={"partitions_max": 2_000}) as at:
        made = await at.http.post("/v1/topics", json={"name": "t", "partitions": 2_000})
        assert made.status_code == 201, made.text
        records = [{"value": str(number), "partition": number} for number in range(0, 2_000, 500)]
        assert (await at.http.post("/v1/topics/t/records", json={"records": records})).status_code == 200
        for path in (
            "records",
            "records?order=newest",
            "events",
            f"records?partitions={','.join(map(str, range(257)))}",
        ):
            refused = await at.http.get(f"/v1/topics/t/{path}")
            assert (refused.status_code, refused.json()["code"]) == (400, "INVALID_REQUEST"), path
        named = ",".join(map(str, range(1_500, 1_756)))
        page = (await at.http.get(f"/v1/topics/t/records?partitions={named}&order=newest")).json()
        assert [record["value"] for record in page["records"]] == ["1500"]
        assert len(page["next"]) <= 4_096
        again = await at.http.get(f"/v1/topics/t/records?cursor={page['next']}&order=newest&partitions={named}")
        assert (again.status_code, again.json()["records"]) == (200, [])


async def test_a_record_of_the_year_9999_does_not_stay_on_top() -> None:
    """Newest first goes by the time of records, where a time to come counts as now."""
    async with world() as at:
        settings = {"message.timestamp.after.max.ms": str(2**50)}
        made = await at.http.post("/v1/topics", json={"name": "t", "partitions": 2, "settings": settings})
        assert made.status_code == 201, made.text
        future = {"value": "9999", "partition": 0, "timestamp": "9999-12-31T23:59:59Z"}
        assert (await at.http.post("/v1/topics/t/records", json={"records": [future]})).status_code == 200
        for number in range(3):
            given = {"records": [{"value": str(number), "partition": number % 2}]}
            assert (await at.http.post("/v1/topics/t/records", json=given)).status_code == 200
        values, cursor = [], ""
        for _ in range(6):
            page = (await at.http.get(f"/v1/topics/t/records?order=newest&limit=1{cursor}")).json()
            values += [record["value"] for record in page["records"]]
            cursor = f"&cursor={page['next']}"
        assert values == ["2", "1", "0", "9999"], "each once, behind the later ones of its partition"
