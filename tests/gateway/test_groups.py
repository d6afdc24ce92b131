"""Groups, look-up and delayed records over HTTP."""

from __future__ import annotations

from typing import Any

from tests.gateway.test_events import produce, topic
from tests.gateway.world import World, world


async def put(at: World, epoch: int, offset: int, **more: Any) -> Any:
    offsets = [{"topic": "t", "partition": 0, "offset": offset, **more}]
    return await at.http.put("/v1/groups/readers/offsets", json={"epoch": epoch, "offsets": offsets})


async def test_a_reader_without_membership_keeps_its_place() -> None:
    async with world() as at:
        await topic(at)
        await produce(at, "t", *[{"value": str(number)} for number in range(5)])
        assert (await at.http.get("/v1/groups/readers/offsets")).status_code == 404
        first = await put(at, 0, 2)
        assert first.status_code == 200, first.text
        epoch = first.json()["epoch"]
        assert [(each["partition"], each["offset"]) for each in first.json()["offsets"]] == [(0, 2)]
        assert (await put(at, epoch, 4)).status_code == 200
        assert (await put(at, epoch + 7, 5)).json()["code"] == "STALE_ASSIGNMENT"
        back = await put(at, epoch, 1)
        assert (back.status_code, back.json()["code"]) == (409, "COMMIT_GOES_BACK")
        other = await put(at, epoch, 5, topic_id=987654)
        assert (other.status_code, other.json()["code"]) == (409, "OTHER_TOPIC")
        assert [group["name"] for group in (await at.http.get("/v1/groups")).json()["groups"]] == ["readers"]
        described = (await at.http.get("/v1/groups/readers")).json()
        assert (described["members"], described["offsets"][0]["offset"]) == (0, 4)


async def test_a_reset_is_refused_where_another_offset_was_committed_meanwhile() -> None:
    async with world() as at:
        await topic(at)
        await produce(at, "t", *[{"value": str(number)} for number in range(5)])
        epoch = (await put(at, 0, 2)).json()["epoch"]
        seen = [{"topic": "t", "partition": 0, "offset": 2}]
        preview = await at.http.post("/v1/groups/readers/reset", json={"to": "earliest", "dry_run": True})
        assert preview.json()["resets"] == [{"topic": "t", "partition": 0, "before": 2, "after": 0}]
        await put(at, epoch, 3)
        refused = await at.http.post("/v1/groups/readers/reset", json={"to": "earliest", "expect": seen})
        assert (refused.status_code, refused.json()["code"]) == (409, "OTHER_OFFSET")
        done = await at.http.post("/v1/groups/readers/reset", json={"to": 1, "topics": ["t"]})
        assert done.status_code == 200, done.text
        assert (await at.http.get("/v1/groups/readers/offsets")).json()["offsets"][0]["offset"] == 1
        assert (await at.http.delete("/v1/groups/readers")).status_code == 204
        assert (await at.http.delete("/v1/groups/readers")).status_code == 404


async def test_records_are_found_by_key() -> None:
    async with world() as at:
        await topic(at, partitions=2)
        await produce(
            at, "t", {"value": "a", "key": "k"}, {"value": "b", "key_base64": "/w=="}, {"value": "c", "key": "k"}
        )
        found = await at.http.get("/v1/topics/t/find?key=k")
        assert found.status_code == 200, found.text
        assert [record["value"] for record in found.json()["records"]] == ["c", "a"]
        assert [
            record["value"] for record in (await at.http.get("/v1/topics/t/find?key_base64=/w==")).json()["records"]
        ] == ["b"]
        stopped = await at.http.get("/v1/topics/t/find?key=k&limit=1&order=oldest")
        assert (stopped.status_code, [each["value"] for each in stopped.json()["records"]]) == (206, ["a"])
        assert stopped.json()["rest"]
        for wrong in ("", "?key=a&key_base64=YQ==", "?key_base64=a", "?key=a&from=5"):
            assert (await at.http.get(f"/v1/topics/t/find{wrong}")).status_code == 400


async def test_a_delayed_record_is_listed_and_recalled() -> None:
    async with world() as at:
        await topic(at)
        sent = await at.http.post("/v1/topics/t/records", json={"records": [{"value": "later", "delay_ms": 3_600_000}]})
        [result] = sent.json()["results"]
        listed = (await at.http.get("/v1/delayed?topic=t")).json()
        assert [each["handle"] for each in listed["records"]] == [result["handle"]]
        for _ in range(2):
            recalled = await at.http.delete(f"/v1/delayed/{result['handle']}")
            assert recalled.json() == {"outcome": "recalled"}, recalled.text
        assert (await at.http.delete("/v1/delayed/nonsense")).status_code == 400


async def test_groups_need_their_rights() -> None:
    async with world(rules=True) as at:
        alice = await at.user("alice", "group mine", "produce,consume,describe,create t")
        bob = await at.user("bob", "consume,describe t")
        await at.http.post("/v1/topics", json={"name": "t", "partitions": 1}, headers=alice)
        body = {"epoch": 0, "offsets": [{"topic": "t", "partition": 0, "offset": 0}]}
        assert (await at.http.put("/v1/groups/mine/offsets", json=body, headers=alice)).status_code == 200
        assert (await at.http.put("/v1/groups/mine/offsets", json=body, headers=bob)).status_code in (403, 409)
        assert (await at.http.get("/v1/groups/mine", headers=bob)).status_code == 403
        assert (await at.http.delete("/v1/groups/mine", headers=bob)).status_code == 403
        assert (await at.http.get("/v1/groups", headers=bob)).json()["groups"] == []
        assert len((await at.http.get("/v1/groups", headers=alice)).json()["groups"]) == 1
