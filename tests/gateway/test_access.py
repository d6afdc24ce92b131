"""Access rules, tokens and quotas over HTTP."""

from __future__ import annotations

from ledgermq_broker.costs.counted import StoreCosts
from ledgermq_ledger.object_store.prices import S3_PRICES, Prices
from ledgermq_tools.testing.cluster import VirtualCluster
from tests.gateway.world import world


class Priced(VirtualCluster):
    """Requests to its store have the price that is in `costs`."""

    costs = StoreCosts()

    def observers(self, address: str) -> dict[str, object]:
        return {**super().observers(address), "counts": [self.costs]}


async def test_budgets_in_dollars() -> None:
    async with world(kind=Priced) as at:
        Priced.costs.prices = Prices()
        quota = {"principal": "user:shop", "limits": {"requests": 500, "dollars_month": 12.25}}
        free = await at.http.put("/v1/quotas", json=quota)
        assert free.status_code == 400
        assert "no price" in free.text
        Priced.costs.prices = S3_PRICES
        assert (await at.http.put("/v1/quotas", json=quota)).status_code == 200
        for name, wrong in (("dollars_month", 0), ("dollars_month", -1), ("dollars_month", 2**53), ("requests", 1.5)):
            answer = await at.http.put("/v1/quotas", json=quota | {"limits": {name: wrong}})
            assert answer.status_code == 400, answer.text
        assert '"limits":{"requests":500,"dollars_month":12.25}' in (await at.http.get("/v1/quotas")).text
        dropped = await at.http.put("/v1/quotas", json=quota | {"limits": {"dollars_month": None}})
        assert dropped.json()["limits"] == {"requests": 500}


async def test_rules_tokens_and_quotas() -> None:
    async with world(rules=True) as at:
        root = await at.user("root")
        made = await at.http.post("/v1/access/tokens", json={"user": "shop", "expires_in_s": 3600}, headers=root)
        assert made.status_code == 201, made.text
        shop = {"Authorization": f"Bearer {made.json()['token']}"}
        rule = {"principal": "user:shop", "operations": ["describe", "create"], "name": "shop*"}
        granted = await at.http.post("/v1/access/rules", json=rule, headers=root)
        assert granted.status_code == 201, granted.text
        assert (
            await at.http.post("/v1/topics", json={"name": "shop-1", "partitions": 1}, headers=shop)
        ).status_code == 201
        tested = (await at.http.get("/v1/access/test?operation=create&name=shop-2", headers=shop)).json()
        assert (tested["allowed"], tested["principal"], tested["rule_id"]) == (True, "user:shop", granted.json()["id"])
        listed = (await at.http.get("/v1/access/rules", headers=root)).json()["rules"]
        assert [each["id"] for each in listed] == [granted.json()["id"]]
        for path in ("rules", "tokens"):
            assert (await at.http.get(f"/v1/access/{path}", headers=shop)).status_code == 403
        tokens = (await at.http.get("/v1/access/tokens", headers=root)).json()["tokens"]
        assert made.json()["token_id"] in [each["token_id"] for each in tokens]
        assert made.json()["token"] not in str(tokens)
        quota = {"principal": "user:shop", "limits": {"requests": 500, "calls": 10}}
        assert (await at.http.put("/v1/quotas", json=quota, headers=root)).json()["limits"] == {
            "requests": 500,
            "calls": 10,
        }
        dropped = await at.http.put("/v1/quotas", json=quota | {"limits": {"calls": None}}, headers=root)
        assert dropped.json()["limits"] == {"requests": 500}, dropped.text
        assert (await at.http.put("/v1/quotas", json=quota | {"limits": {"x": 1}}, headers=root)).status_code == 400
        for path in (f"rules/{granted.json()['id']}", f"tokens/{made.json()['token_id']}"):
            assert (await at.http.delete(f"/v1/access/{path}", headers=shop)).status_code in (401, 403)
            assert (await at.http.delete(f"/v1/access/{path}", headers=root)).status_code == 204
            assert (await at.http.delete(f"/v1/access/{path}", headers=root)).status_code == 404
        assert (await at.http.get("/v1/topics", headers=shop)).status_code == 401
