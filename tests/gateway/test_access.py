"""Access rules, tokens and quotas over HTTP."""

from __future__ import annotations

from tests.gateway.world import world


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
