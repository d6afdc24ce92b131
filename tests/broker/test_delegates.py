"""Setting `delegates`: whom a broker believes when it says where a call comes from."""

from __future__ import annotations

import pytest

from ledgermq.protocol.naming.client_ids import (
    CLIENT_ADDRESS,
    CLIENT_REQUEST,
    DELEGATE,
    found_address,
    found_request_id,
)
from ledgermq.protocol.naming.tokens import AUTHORIZATION, bearer
from ledgermq_broker.access.audit.log import UNKNOWN, _source_of
from ledgermq_broker.access.audit.sums import Decision
from ledgermq_broker.access.door import Door
from ledgermq_broker.logs import follow_call
from ledgermq_broker.ports.call_metadata import call_metadata
from tests.broker.access import RULES, token
from tests.broker.cluster import Cluster, in_cluster

DELEGATES = RULES | {"delegates": "user:gateway, cert:gateway.example"}


def door(cluster: Cluster) -> Door:
    found = cluster.brokers["a:1"].door
    assert found is not None
    return found


@in_cluster("a:1", **DELEGATES)
async def test_only_the_named_principals_are_believed(cluster: Cluster) -> None:
    gateway, alice = bearer((await token(cluster, "gateway")).text), bearer((await token(cluster, "alice")).text)
    root = bearer((await token(cluster, "root")).text)
    at = door(cluster)
    assert await at.delegate(gateway) == "user:gateway"
    assert await at.delegate("", ["gateway.example", "alice.example"]) == "cert:gateway.example"
    assert await at.delegate("", ["alice.example", "gateway.example"]) == "", "the first name is the principal"
    for other in (alice, root, "", "Bearer wrong", "Bearer anonymous", "gateway", "LedgerMQ-Broker x"):
        assert await at.delegate(other) == "", other
    assert await at.delegate(alice, ["gateway.example"]) == "", "a credential that is given decides"
    broker = cluster.brokers["a:1"].credentials.credential("a:1")
    assert await at.delegate(broker) == "", "no broker passes calls on for clients"


@in_cluster("a:1", **DELEGATES)
async def test_a_delegate_gets_no_right_and_none_of_the_caller_s_credential(cluster: Cluster) -> None:
    """Who makes the call is decided by its own credential alone."""
    gateway, alice = bearer((await token(cluster, "gateway")).text), bearer((await token(cluster, "alice")).text)
    at = door(cluster)
    assert await at.delegate(gateway)
    assert (await at.admit(alice)).principal.name == "user:alice"
    assert (await at.admit(gateway)).principal.name == "user:gateway"


@in_cluster("a:1", **RULES)
async def test_delegates_change_while_a_broker_runs(cluster: Cluster) -> None:
    gateway, broker = bearer((await token(cluster, "gateway")).text), cluster.brokers["a:1"]
    assert await door(cluster).delegate(gateway) == ""
    broker.apply(cluster.settings.model_copy(update={"delegates": "user:gateway"}))
    assert await door(cluster).delegate(gateway) == "user:gateway"
    broker.apply(cluster.settings)
    assert await door(cluster).delegate(gateway) == ""


@in_cluster("a:1", **DELEGATES)
async def test_a_revoked_token_is_believed_no_longer(cluster: Cluster) -> None:
    drawn = await token(cluster, "gateway")
    assert await door(cluster).delegate(bearer(drawn.text)) == "user:gateway"
    async with cluster.client((await token(cluster, "root")).text) as root:
        await root.access.revoke_token(drawn.token_id)
    assert await door(cluster).delegate(bearer(drawn.text)) == ""


@in_cluster("a:1", security="open", delegates="user:gateway")
async def test_where_rules_do_not_count_nobody_proves_anything(cluster: Cluster) -> None:
    gateway = bearer((await token(cluster, "gateway")).text)
    if not door(cluster).closed:
        assert await door(cluster).delegate(gateway) == ""


class _Context:
    def __init__(self, *pairs: tuple[str, str | bytes]) -> None:
        self._pairs = pairs

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return self._pairs


def test_metadata_that_are_no_address_and_no_id_say_nothing() -> None:
    said = call_metadata(
        _Context(  # type: ignore[arg-type]  # it has what is read
            (AUTHORIZATION, "Bearer a"), (DELEGATE, "Bearer b"), (CLIENT_ADDRESS, "192.0.2.7"), (CLIENT_REQUEST, "a-1")
        )
    )
    assert (said.credential, said.delegate, said.address, said.request_id) == (
        "Bearer a",
        "Bearer b",
        "192.0.2.7",
        "a-1",
    )
    wrong = call_metadata(
        _Context((CLIENT_ADDRESS, '1.2.3.4" principal="root'), (CLIENT_REQUEST, "a b"))  # type: ignore[arg-type]  # as above
    )
    assert (wrong.address, wrong.request_id, wrong.delegate) == ("", "", "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:DB8:0::1", "2001:db8::1"),
        ("", ""),
        ("host", ""),
        ("192.0.2.7:80", ""),
        ("1" * 10_000, ""),
        ("192.0.2.7\n", ""),
    ],
)
def test_addresses_are_read_strictly(text: str, expected: str) -> None:
    assert found_address(text) == expected


def test_ids_of_requests_are_read_strictly() -> None:
    assert found_request_id("0c2f-A") == "0c2f-A"
    assert [found_request_id(wrong) for wrong in ("", "a" * 65, "a b", "a\n", "ä")] == [""] * 5


def test_lines_of_strangers_are_summed_by_their_own_address() -> None:
    """One that floods a gateway does not use up the lines of all others there."""
    stranger = Decision(UNKNOWN, "admission", False, False, "", "no token")
    ids = follow_call(connection="ipv4:10.0.0.1:5000")
    assert _source_of(stranger) == "ipv4:10.0.0.1"
    ids.update(client="192.0.2.7")
    assert _source_of(stranger) == "192.0.2.7"
    ids.clear()
