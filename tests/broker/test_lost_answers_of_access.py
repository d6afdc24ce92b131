"""Access rules and tokens that are changed while answers are lost and other programs change them too. In virtual
time.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ledgermq.errors import InvalidRequest
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.access.rule_path import RulePath
from ledgermq_broker.metadata.controller import Controller
from tests.broker.cluster import Cluster, in_cluster
from tests.broker.lost_answers import lose_the_answer


async def rules(cluster: Cluster) -> Sequence[str]:
    async with cluster.client() as client:
        return [rule.id for rule in await client.access.list()]


@pytest.mark.parametrize("existed", [False, True])
@in_cluster("a:1", "b:1")
async def test_a_grant_whose_answer_was_lost_does_not_bring_a_revoked_rule_back(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, existed: bool
) -> None:
    """Also one that changed nothing, as the rule existed already."""
    async with cluster.client() as one, cluster.client() as other:
        rule_id = await one.access.grant("user:ann", "consume", "orders")
        if not existed:
            await one.access.revoke(rule_id)
        lose_the_answer(monkeypatch, Controller, "put_rules", stored=True, then=lambda: other.access.revoke(rule_id))
        assert await one.access.grant("user:ann", "consume", "orders") == rule_id
        assert await rules(cluster) == []
        await one.access.grant("user:ann", "consume", "orders")
        assert await rules(cluster) == [rule_id]


@in_cluster("a:1", "b:1")
async def test_a_revocation_whose_answer_was_lost_revokes_no_later_rule(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster.client() as one, cluster.client() as other:
        rule_id = await one.access.grant("user:ann", "consume", "orders", deny=True)
        again = lambda: other.access.grant("user:ann", "consume", "orders", deny=True)  # noqa: E731
        lose_the_answer(monkeypatch, Controller, "put_rules", stored=True, then=again)
        assert await one.access.revoke(rule_id) == [rule_id]
        assert await rules(cluster) == [rule_id]


@in_cluster("a:1", "b:1")
async def test_a_new_token_whose_answer_was_lost_does_not_come_back_after_its_revocation(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster.client() as one, cluster.client() as other:

        async def revoke_all() -> None:
            for token in await other.access.list_tokens():
                assert await other.access.revoke_token(token.token_id)

        lose_the_answer(monkeypatch, Controller, "put_rules", stored=True, then=revoke_all)
        made = await one.access.create_token("ann")
        assert await one.access.list_tokens() == []
        kept = await one.access.create_token("ann")
        assert kept.token_id != made.token_id
        assert [token.token_id for token in await one.access.list_tokens()] == [kept.token_id]


@in_cluster("a:1", "b:1")
async def test_a_change_that_was_not_made_is_made_by_the_next_attempt(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster.client() as one, cluster.client() as other:
        first = await one.access.grant("user:ann", "consume", "orders")
        lose_the_answer(monkeypatch, Controller, "put_rules", stored=False, then=lambda: other.access.revoke(first))
        assert await one.access.grant("user:ann", "consume", "orders") == first
        assert await rules(cluster) == [first]


@pytest.mark.parametrize("stored", [True, False])
@in_cluster("a:1", "b:1")
async def test_a_revocation_answers_what_it_has_revoked_though_its_answer_was_lost(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    async with cluster.client() as one, cluster.client() as other:
        first, second, third = [await one.access.grant("user:ann", "consume", name) for name in "abc"]
        unknown = "0123456789abcdef"
        lose_the_answer(monkeypatch, Controller, "put_rules", stored=stored, then=lambda: other.access.revoke(third))
        assert await one.access.revoke(unknown, first, unknown, "f" * 16, second) == [first, second]
        assert await rules(cluster) == []


@in_cluster("a:1")
async def test_all_of_many_revocations_are_answered_rightly_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each keeps what it answered, beside the next ones."""
    async with cluster.client() as client:
        there = await client.access.grant("user:ann", "consume", "orders")
        ids = [there, *(f"{n:016x}" for n in range(999))]
        line = cluster.line("a:1")
        calls = [pb.ChangeRulesRequest(revoke=ids[n:] + ids[:n], nonce=bytes([n + 1] * 16)) for n in range(64)]
        answers = [list((await line.change_rules(call)).revoked) for call in calls]
        assert answers == [[there], *([[]] * 63)]
        assert [list((await line.change_rules(call)).revoked) for call in calls] == answers


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("existed", [True, False])
@in_cluster("a:1", "b:1")
async def test_a_revocation_of_a_token_answers_whether_it_existed_though_its_answer_was_lost(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, stored: bool, existed: bool
) -> None:
    async with cluster.client() as client:
        token_id = (await client.access.create_token("ann")).token_id if existed else "0123456789ab"
        lose_the_answer(monkeypatch, Controller, "put_rules", stored=stored)
        assert await client.access.revoke_token(token_id) is existed
        assert await client.access.list_tokens() == []


@in_cluster("a:1")
async def test_a_token_counts_as_revoked_after_a_lost_answer_of_a_broker_that_ignores_nonces(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = RulePath.revoke_token

    async def as_before(self: RulePath, request: pb.RevokeTokenRequest) -> pb.RevokeTokenResponse:
        return await true(self, pb.RevokeTokenRequest(token_id=request.token_id))

    monkeypatch.setattr(RulePath, "revoke_token", as_before)
    async with cluster.client() as client:
        made = await client.access.create_token("ann")
        lose_the_answer(monkeypatch, Controller, "put_rules", stored=True)
        assert await client.access.revoke_token(made.token_id)
        assert not await client.access.revoke_token(made.token_id)


@in_cluster("a:1")
async def test_the_nonce_of_a_change_has_a_bound(cluster: Cluster) -> None:
    with pytest.raises(InvalidRequest, match="at most 16 bytes, this one has 17"):
        await cluster.line("a:1").change_rules(pb.ChangeRulesRequest(revoke=["0123456789abcdef"], nonce=bytes(17)))
    with pytest.raises(InvalidRequest, match="at most 16 bytes, this one has 17"):
        await cluster.line("a:1").revoke_token(pb.RevokeTokenRequest(token_id="0123456789ab", nonce=bytes(17)))
