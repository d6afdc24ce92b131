"""Passwords by SCRAM on the Kafka port: who sets them, what they prove, and until when."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ledgermq.errors import InvalidRequest, ResourceExhausted
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.access import scram_path
from ledgermq_broker.cluster.heartbeat import SCRAM
from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.generated import alter_user_scram_credentials_request as al
from ledgermq_broker.kafka.wire.generated import describe_user_scram_credentials_request as us
from ledgermq_broker.kafka.wire.generated import sasl_authenticate_request as sa
from ledgermq_broker.kafka.wire.generated import sasl_handshake_request as sh
from ledgermq_broker.kafka.wire.messages import (
    DESCRIBE_USER_SCRAM_CREDENTIALS,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
)
from tests.broker.access import RULES, change
from tests.broker.kafka_world import KafkaClient, KafkaCluster, batch_of, in_kafka_cluster
from tests.broker.scram import SHA_256, SHA_512, Proof, alter, prove, upsertion
from tests.broker.test_kafka_identity import ends, proven, topic
from tests.waiting import until

WRONG = Code.SASL_AUTHENTICATION_FAILED


async def admin(cluster: KafkaCluster) -> KafkaClient:
    await change(cluster, grant=["allow user:root cluster", "allow user:ann produce,consume mine"])
    await topic(cluster, "mine")
    return await proven(cluster, "root")


async def described(client: KafkaClient, *users: str) -> dict[str, Any]:
    request = us.DescribeUserScramCredentialsRequest([us.UserName(user) for user in users] or None)
    answer = await client.call(DESCRIBE_USER_SCRAM_CREDENTIALS, 0, request)
    if answer.error_code:
        return {"": answer.error_code}
    return {
        one.user: one.error_code or {info.mechanism: info.iterations for info in one.credential_infos}
        for one in answer.results
    }


@in_kafka_cluster("a:1", "b:1", **RULES)
async def test_a_password_makes_a_user_at_every_broker(cluster: KafkaCluster) -> None:
    root = await admin(cluster)
    assert await alter(root, upsertion("ann", "secret"), upsertion("ann", "other", SHA_512, 8192)) == {"ann": 0}
    for address in ("a:1", "b:1"):
        for mechanism, password in ((SHA_256, "secret"), (SHA_512, "other")):
            client = cluster.connect(address)
            assert await prove(client, Proof("ann", password, mechanism)) == Code.NONE
            assert [one.name for one in (await client.metadata()).topics] == ["mine"]
            wrong = cluster.connect(address)
            assert await prove(wrong, Proof("ann", f"{password}x", mechanism)) == WRONG
            with ends():
                await wrong.metadata()
    assert await described(root) == {"ann": {1: 4096, 2: 8192}}


@in_kafka_cluster("a:1", **RULES)
async def test_what_a_password_proved_ends_with_it(cluster: KafkaCluster) -> None:
    """As with a token that is revoked. A password that is set again, even the same, ends nothing."""
    root = await admin(cluster)
    await alter(root, upsertion("ann", "one"))

    async def connected(password: str) -> KafkaClient:
        client = cluster.connect("a:1")
        assert await prove(client, Proof("ann", password)) == Code.NONE
        assert (await client.produce("mine", 0, batch_of(b"x"))).error_code == Code.NONE
        return client

    first = await connected("one")
    await alter(root, upsertion("ann", "one"))
    assert (await first.produce("mine", 0, batch_of(b"x"))).error_code == Code.NONE
    await alter(root, upsertion("ann", "two"))
    with ends():
        await first.produce("mine", 0, batch_of(b"x"))
    assert await prove(cluster.connect("a:1"), Proof("ann", "one")) == WRONG
    second = await connected("two")
    assert await alter(root, al.ScramCredentialDeletion("ann", 1)) == {"ann": 0}
    with ends():
        await second.fetch("mine", 0, 0)
    assert await prove(cluster.connect("a:1"), Proof("ann", "two")) == WRONG
    assert await described(root) == {}


@in_kafka_cluster("a:1", "b:1", **RULES)
async def test_a_password_counts_after_its_controller_is_gone(cluster: KafkaCluster) -> None:
    root = await admin(cluster)
    await alter(root, upsertion("ann", "secret"))
    client = cluster.connect("b:1")
    assert await prove(client, Proof("ann", "secret")) == Code.NONE
    await cluster.stop("a:1")
    assert [one.name for one in (await client.metadata()).topics] == ["mine"]
    again = cluster.connect("b:1")
    assert await prove(again, Proof("ann", "secret")) == Code.NONE


@in_kafka_cluster("a:1", **RULES)
async def test_a_caller_does_not_learn_which_users_there_are(cluster: KafkaCluster) -> None:
    root = await admin(cluster)
    await alter(root, upsertion("ann", "secret", salt=b"s" * 24))

    async def challenged(user: str) -> dict[str, str]:
        client = cluster.connect("a:1")
        await client.call(SASL_HANDSHAKE, 1, sh.SaslHandshakeRequest(SHA_256))
        answer = await client.call(SASL_AUTHENTICATE, 2, sa.SaslAuthenticateRequest(Proof(user, "").first))
        return dict(part.split("=", 1) for part in bytes(answer.auth_bytes).decode().split(","))

    known, unknown, again = await challenged("ann"), await challenged("eve"), await challenged("eve")
    assert known.keys() == unknown.keys()
    assert (len(known["s"]), known["i"]) == (len(unknown["s"]), unknown["i"])
    assert unknown["s"] == again["s"]
    assert len({known["r"], unknown["r"], again["r"]}) == 3
    assert (await challenged("bob"))["s"] != unknown["s"]
    for user in ("eve", "ann"):
        assert await prove(cluster.connect("a:1"), Proof(user, "guess")) == WRONG


@in_kafka_cluster("a:1", **RULES)
async def test_messages_that_are_no_proof_end_the_connection(cluster: KafkaCluster) -> None:
    root = await admin(cluster)
    await alter(root, upsertion("ann", "secret"), upsertion("a,b=c", "secret"))
    good = Proof("ann", "secret")
    assert await prove(cluster.connect("a:1"), Proof("a,b=c", "secret")) == Code.NONE
    assert await prove(cluster.connect("a:1"), Proof("ann", "secret", acts_as="root")) == WRONG
    assert await prove(cluster.connect("a:1"), Proof("ann", "secret", SHA_512)) == WRONG
    firsts = [b"", b"\xff", b"n,,", b"n,,r=x", b"n,,n=ann", b"p=tls-unique,,n=ann,r=x", b"n,,n=ann,r=\n", b"n" * 5000]
    for data in firsts:
        client = cluster.connect("a:1")
        await client.call(SASL_HANDSHAKE, 1, sh.SaslHandshakeRequest(SHA_256))
        answer = await client.call(SASL_AUTHENTICATE, 2, sa.SaslAuthenticateRequest(data))
        assert answer.error_code == WRONG, data
        assert "ann" not in answer.error_message
        with ends():
            await client.metadata()
    for data in (b"", b"\xff", b"c=biws", b"c=biws,r=x,p=AAAA", good.first):
        client = cluster.connect("a:1")
        await client.call(SASL_HANDSHAKE, 1, sh.SaslHandshakeRequest(SHA_256))
        answer = await client.call(SASL_AUTHENTICATE, 2, sa.SaslAuthenticateRequest(good.first))
        assert answer.error_code == Code.NONE
        answer = await client.call(SASL_AUTHENTICATE, 2, sa.SaslAuthenticateRequest(data))
        assert answer.error_code == WRONG, data


@in_kafka_cluster("a:1", **RULES)
async def test_nothing_is_served_in_the_middle_of_a_proof(cluster: KafkaCluster) -> None:
    root = await admin(cluster)
    await alter(root, upsertion("ann", "secret"))
    client = cluster.connect("a:1")
    await client.call(SASL_HANDSHAKE, 1, sh.SaslHandshakeRequest(SHA_256))
    answer = await client.call(SASL_AUTHENTICATE, 2, sa.SaslAuthenticateRequest(Proof("ann", "secret").first))
    assert answer.error_code == Code.NONE
    with ends():
        await client.metadata()
    client = cluster.connect("a:1")  # a proof that is begun anew is another one
    proof = Proof("ann", "secret")
    await client.call(SASL_HANDSHAKE, 1, sh.SaslHandshakeRequest(SHA_256))
    former = await client.call(SASL_AUTHENTICATE, 2, sa.SaslAuthenticateRequest(proof.first))
    await client.call(SASL_HANDSHAKE, 1, sh.SaslHandshakeRequest(SHA_256))
    await client.call(SASL_AUTHENTICATE, 2, sa.SaslAuthenticateRequest(proof.first))
    late = proof.final(bytes(former.auth_bytes))
    assert (await client.call(SASL_AUTHENTICATE, 2, sa.SaslAuthenticateRequest(late))).error_code == WRONG


@in_kafka_cluster("a:1", **RULES)
async def test_a_password_that_changes_in_the_middle_of_a_proof_does_not_count(cluster: KafkaCluster) -> None:
    root = await admin(cluster)
    await alter(root, upsertion("ann", "one"))
    client, proof = cluster.connect("a:1"), Proof("ann", "one")
    await client.call(SASL_HANDSHAKE, 1, sh.SaslHandshakeRequest(SHA_256))
    challenge = await client.call(SASL_AUTHENTICATE, 2, sa.SaslAuthenticateRequest(proof.first))
    await alter(root, upsertion("ann", "two"))
    final = sa.SaslAuthenticateRequest(proof.final(bytes(challenge.auth_bytes)))
    assert (await client.call(SASL_AUTHENTICATE, 2, final)).error_code == WRONG


@in_kafka_cluster("a:1", **RULES)
async def test_a_connection_keeps_its_principal(cluster: KafkaCluster) -> None:
    root = await admin(cluster)
    await alter(root, upsertion("ann", "a"), upsertion("bob", "b"))
    client = cluster.connect("a:1")
    assert await prove(client, Proof("ann", "a")) == Code.NONE
    assert await prove(client, Proof("ann", "a")) == Code.NONE
    assert await prove(client, Proof("bob", "b")) == WRONG
    with ends():
        await client.metadata()


@in_kafka_cluster("a:1", **RULES)
async def test_what_is_wrong_is_refused_by_user(cluster: KafkaCluster) -> None:
    root = await admin(cluster)
    good = upsertion("ann", "a")
    short = replace(good, name="short", salted_password=b"x")
    cases = [
        (replace(good, name="few", iterations=4095), Code.UNACCEPTABLE_CREDENTIAL),
        (replace(good, name="many", iterations=16_385), Code.UNACCEPTABLE_CREDENTIAL),
        (replace(good, name="unsalted", salt=b""), Code.UNACCEPTABLE_CREDENTIAL),
        (replace(good, name=""), Code.UNACCEPTABLE_CREDENTIAL),
        (replace(good, name="two words"), Code.UNACCEPTABLE_CREDENTIAL),
        (replace(good, name="ⅸ"), Code.UNACCEPTABLE_CREDENTIAL),
        (short, Code.UNACCEPTABLE_CREDENTIAL),
        (replace(good, name="sha1", mechanism=3), Code.UNSUPPORTED_SASL_MECHANISM),
        (al.ScramCredentialDeletion("unknown", 0), Code.UNSUPPORTED_SASL_MECHANISM),
        (al.ScramCredentialDeletion("nobody", 1), Code.RESOURCE_NOT_FOUND),
    ]
    answered = await alter(root, good, *(one for one, _ in cases))
    assert answered == {"ann": 0} | {one.name: code for one, code in cases}
    assert await described(root) == {"ann": {1: 4096}}
    twice = await alter(root, upsertion("ann", "b"), al.ScramCredentialDeletion("ann", 1), upsertion("bob", "b"))
    assert twice == {"ann": Code.DUPLICATE_RESOURCE, "bob": 0}
    assert await described(root, "ann", "eve") == {"ann": {1: 4096}, "eve": Code.RESOURCE_NOT_FOUND}
    assert await described(root, "ann", "ann") == {"ann": Code.DUPLICATE_RESOURCE}


@in_kafka_cluster("a:1", "b:1", **RULES)
async def test_only_who_may_change_the_cluster_sets_passwords(cluster: KafkaCluster) -> None:
    await admin(cluster)
    ann = await proven(cluster, "ann")
    denied = Code.CLUSTER_AUTHORIZATION_FAILED
    assert await alter(ann, upsertion("root", "mine")) == {"root": denied}
    assert await described(ann) == {"": denied}
    assert await prove(cluster.connect("b:1"), Proof("root", "mine")) == WRONG


@in_kafka_cluster("a:1", "b:1", **RULES)
async def test_passwords_need_every_broker_to_know_them(cluster: KafkaCluster) -> None:
    root = await admin(cluster)
    older = cluster.brokers["b:1"].membership
    older.me = replace(older.me, features=tuple(each for each in older.me.features if each != SCRAM))
    await until(lambda: bool(cluster.brokers["a:1"].membership.lacking(SCRAM)))
    assert (await alter(root, upsertion("ann", "a")))["ann"] != Code.NONE
    assert await described(root) == {}


@in_kafka_cluster("a:1")
async def test_an_open_cluster_takes_right_passwords_only(cluster: KafkaCluster) -> None:
    """The broker has to prove that it knows the password, too, which it does not of others."""
    client = cluster.connect("a:1")
    assert await alter(client, upsertion("ann", "secret")) == {"ann": 0}
    assert await prove(client, Proof("ann", "secret")) == Code.NONE
    assert (await client.metadata()).brokers
    assert await prove(cluster.connect("a:1"), Proof("ann", "guess")) == WRONG


@in_kafka_cluster("a:1", **RULES)
async def test_a_repeated_change_is_made_once_and_bounds_hold(
    cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = cluster.brokers["a:1"].service
    keys = {"salt": b"s" * 16, "iterations": 4096, "stored_key": b"k" * 32, "server_key": b"k" * 32}

    def wire(user: str) -> pb.ScramCredential:
        return pb.ScramCredential(name=pb.ScramName(user=user, mechanism=SHA_256), **keys)  # type: ignore[arg-type]

    gone = [pb.ScramName(user="ann", mechanism=SHA_256), pb.ScramName(user="eve", mechanism=SHA_256)]
    await service.change_scram(pb.ChangeScramRequest(set=[wire("ann")]))
    request = pb.ChangeScramRequest(unset=gone, set=[wire("bob")], nonce=b"n" * 16)
    first = await service.change_scram(request)
    assert [name.user for name in first.absent] == ["eve"]
    await service.change_scram(
        pb.ChangeScramRequest(set=[wire("ann")], unset=[pb.ScramName(user="bob", mechanism=SHA_256)])
    )
    assert await service.change_scram(request) == first
    listed = (await service.list_scram(pb.ListScramRequest())).credentials
    assert [one.name.user for one in listed] == ["ann"]
    with pytest.raises(InvalidRequest, match="stands twice"):
        await service.change_scram(pb.ChangeScramRequest(set=[wire("ann")], unset=gone))
    with pytest.raises(InvalidRequest, match="SCRAM-SHA-1' is unknown"):
        await service.change_scram(pb.ChangeScramRequest(unset=[pb.ScramName(user="a", mechanism="SCRAM-SHA-1")]))
    monkeypatch.setattr(scram_path, "SCRAM_MAX", 2)
    await service.change_scram(pb.ChangeScramRequest(set=[wire("two")]))
    with pytest.raises(ResourceExhausted, match="remove some"):
        await service.change_scram(pb.ChangeScramRequest(set=[wire("three")]))
    await service.change_scram(pb.ChangeScramRequest(set=[wire("two")]))


@in_kafka_cluster("a:1", **RULES)
async def test_no_text_shows_keys(cluster: KafkaCluster) -> None:
    root = await admin(cluster)
    await alter(root, upsertion("ann", "secret"))
    [stored] = cluster.brokers["a:1"].rules.rules.scram.values()
    assert stored.salt.decode() not in repr(stored)
    assert str(stored.stored_key) not in repr(stored)
