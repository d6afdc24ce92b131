"""Topics over HTTP: deletion within its grace, and for good."""

from __future__ import annotations

from tests.gateway.test_events import produce, topic
from tests.gateway.world import world


async def test_a_deleted_topic_comes_back_within_its_grace_and_not_after_now() -> None:
    async with world() as at:
        await topic(at)
        await produce(at, "t", {"value": "a"})
        deleted = await at.http.delete("/v1/topics/t")
        assert deleted.status_code == 204
        assert "content-type" not in deleted.headers, "there is no content"
        gone = await at.http.get("/v1/topics/t/offsets")
        assert gone.status_code in (404, 409), gone.text
        back = await at.http.post("/v1/topics/t/undelete")
        assert (back.status_code, back.json()["name"]) == (200, "t")
        offsets = (await at.http.get("/v1/topics/t/offsets")).json()["offsets"]
        assert [each["offset"] for each in offsets] == [1]
        assert (await at.http.delete("/v1/topics/t?now=true")).status_code == 204
        refused = await at.http.post("/v1/topics/t/undelete")
        assert refused.status_code in (404, 409), refused.text
