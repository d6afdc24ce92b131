"""Every method of the service, by every kind of caller: whether it is let through."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from google.protobuf.message import Message

from ledgermq.errors import LedgerMQError
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import Frame
from ledgermq.protocol.methods import METHODS, Kind, Method
from ledgermq.protocol.naming.exclusive_ids import exclusive_id
from ledgermq_broker.access.wrappers.authorized import GUARDS, AuthorizedService
from tests.broker.access import RULES, call, change, codes_of, is_refused, message_of, token
from tests.broker.cluster import Cluster, fetch_of, frame_of, in_cluster
from tests.broker.transaction_calls import stage_frame

TOPIC, GROUP, ID = "orders", "billing", "pay-1"
REF = pb.TransactionRef(transactional_id=ID, producer_id=bytes(16), epoch=1, number=1)
FROM_A_BROKER = "from a broker"


@dataclass(frozen=True)
class Sample:
    """`rules`: with these a caller is let through; () if any caller with a token is. `shows`: for a list,
    whether the answer shows what the rule is about.
    """

    request: Callable[[], Any]
    rules: tuple[str, ...] | str
    shows: Callable[[Any], bool] | None = None


def _stage() -> Any:
    return stage_frame(REF, (TOPIC, 0, 0, [b"x"]))


EXCLUSIVE = exclusive_id(bytes(16))
TRANSACTION = "transaction pay-*"
SAMPLES: dict[str, Sample] = {
    "produce": Sample(lambda: frame_of(TOPIC, 0, b"x"), ("produce orders",)),
    "produce_once": Sample(lambda: frame_of(TOPIC, 0, b"x"), ("produce orders",)),
    "produce_delayed": Sample(lambda: frame_of(TOPIC, 0, b"x"), ("produce orders",)),
    "produce_delayed_once": Sample(lambda: frame_of(TOPIC, 0, b"x"), ("produce orders",)),
    "fetch": Sample(lambda: fetch_of(TOPIC, 0), ("consume orders",)),
    "fetch_once": Sample(lambda: fetch_of(TOPIC, 0), ("consume orders",)),
    "list_offsets": Sample(
        lambda: pb.ListOffsetsRequest(queries=[pb.OffsetQuery(topic=TOPIC, earliest=True)]), ("describe orders",)
    ),
    "open_producer": Sample(
        lambda: pb.OpenProducerRequest(partitions=[pb.TopicPartition(topic=TOPIC)]), ("produce orders",)
    ),
    "describe_cluster": Sample(pb.DescribeClusterRequest, ()),
    "describe_topics": Sample(lambda: pb.DescribeTopicsRequest(topics=[TOPIC]), ("describe orders",)),
    "create_topic": Sample(lambda: pb.CreateTopicRequest(name="new"), ("create new",)),
    "alter_topic": Sample(lambda: pb.AlterTopicRequest(name=TOPIC, set={"retention.ms": "5"}), ("alter orders",)),
    "delete_topic": Sample(
        lambda: pb.DeleteTopicRequest(name="absent", now=True, with_cuts=True), ("delete absent", "cluster")
    ),
    "undelete_topic": Sample(lambda: pb.UndeleteTopicRequest(name="absent"), ("delete absent",)),
    "delete_records": Sample(
        lambda: pb.DeleteRecordsRequest(topic=TOPIC, partitions=[pb.RecordsToDelete(end=True)]), ("delete orders",)
    ),
    "find_messages": Sample(lambda: pb.FindMessagesRequest(topic=TOPIC, key=b"k"), ("consume orders",)),
    "group_heartbeat": Sample(
        lambda: pb.GroupHeartbeatRequest(
            group=GROUP, member_id="m", step=pb.JOIN, subscription=pb.GroupSubscription(topics=[TOPIC])
        ),
        ("group billing", "consume orders"),
    ),
    "commit_offsets": Sample(
        lambda: pb.CommitOffsetsRequest(group=GROUP, commits=[pb.OffsetCommit(topic=TOPIC, counter=1)]),
        ("group billing", "consume orders"),
    ),
    "fetch_committed": Sample(
        lambda: pb.FetchCommittedRequest(group=GROUP, partitions=[pb.TopicPartition(topic=TOPIC)]),
        ("group billing", "describe orders"),
    ),
    "reset_offsets": Sample(
        lambda: pb.ResetOffsetsRequest(group=GROUP, resets=[pb.OffsetReset(topic=TOPIC)]),
        ("group billing", "consume orders"),
    ),
    "find_coordinator": Sample(lambda: pb.FindCoordinatorRequest(group=GROUP), ("group billing",)),
    "join_classic_group": Sample(
        lambda: pb.JoinClassicGroupRequest(
            group=GROUP,
            protocol_type="consumer",
            protocols=[pb.ClassicProtocol(name="range")],
            session_timeout_ms=6000,
            rebalance_timeout_ms=6000,
            id_required=True,
        ),
        ("group billing",),
    ),
    "sync_classic_group": Sample(lambda: pb.SyncClassicGroupRequest(group=GROUP, member_id="m"), ("group billing",)),
    "classic_heartbeat": Sample(lambda: pb.ClassicHeartbeatRequest(group=GROUP, member_id="m"), ("group billing",)),
    "leave_classic_group": Sample(lambda: pb.LeaveClassicGroupRequest(group=GROUP), ("group billing",)),
    "commit_for_generation": Sample(
        lambda: pb.CommitForGenerationRequest(group=GROUP, outside=True, commits=[pb.GenerationCommit(topic=TOPIC)]),
        ("group billing", "consume orders"),
    ),
    "list_groups": Sample(pb.ListGroupsRequest, ()),
    "describe_group": Sample(lambda: pb.DescribeGroupRequest(group=GROUP), ("group billing",)),
    "delete_group": Sample(lambda: pb.DeleteGroupRequest(group=GROUP), ("group billing",)),
    "stage": Sample(_stage, (TRANSACTION, "produce orders")),
    "stage_delayed": Sample(_stage, (TRANSACTION, "produce orders")),
    "stage_offsets": Sample(
        lambda: pb.StageOffsetsRequest(transaction=REF, group=GROUP, commits=[pb.OffsetCommit(topic=TOPIC)]),
        (TRANSACTION, "group billing", "consume orders"),
    ),
    "init_transactions": Sample(lambda: pb.InitTransactionsRequest(transactional_id=ID), (TRANSACTION,)),
    "end_transaction": Sample(lambda: pb.EndTransactionRequest(transaction=REF, outcome=pb.ABORTED), (TRANSACTION,)),
    "transaction_outcome": Sample(lambda: pb.TransactionOutcomeRequest(transactional_id=ID), (TRANSACTION,)),
    "resolve_transaction": Sample(lambda: pb.ResolveTransactionRequest(transactional_id=ID), ("cluster",)),
    "list_transactions": Sample(pb.ListTransactionsRequest, ()),
    "describe_transaction": Sample(lambda: pb.DescribeTransactionRequest(transactional_id=ID), (TRANSACTION,)),
    "complete_transaction": Sample(lambda: pb.CompleteTransactionRequest(transaction=REF), FROM_A_BROKER),
    "ask_transaction": Sample(lambda: pb.AskTransactionRequest(transaction=REF), FROM_A_BROKER),
    "poll_checks": Sample(lambda: pb.PollChecksRequest(check_group=GROUP), ("group billing",)),
    "read_staged": Sample(lambda: pb.ReadStagedRequest(transaction=REF), FROM_A_BROKER),
    "find_transaction_coordinator": Sample(
        lambda: pb.FindTransactionCoordinatorRequest(transactional_id=ID), (TRANSACTION,)
    ),
    "add_to_transaction": Sample(
        lambda: pb.AddToTransactionRequest(transaction=REF, partitions=[pb.TopicPartition(topic=TOPIC)], group=GROUP),
        (TRANSACTION, "group billing", "produce orders"),
    ),
    "join_transaction": Sample(lambda: pb.JoinTransactionRequest(transaction=REF), FROM_A_BROKER),
    "count_staged": Sample(lambda: pb.CountStagedRequest(transaction=REF), FROM_A_BROKER),
    "recall_delayed": Sample(lambda: pb.RecallDelayedRequest(topic=TOPIC, topic_id=1), ("produce orders",)),
    "list_delayed": Sample(lambda: pb.ListDelayedRequest(bundle=1, topic=TOPIC), ("consume orders",)),
    "change_rules": Sample(pb.ChangeRulesRequest, ("cluster",)),
    "list_rules": Sample(pb.ListRulesRequest, ("cluster",)),
    "test_rules": Sample(lambda: pb.TestRulesRequest(operation="produce", name=TOPIC), ()),
    "create_token": Sample(
        lambda: pb.CreateTokenRequest(token_id="0123456789ab", hash=bytes(32), user="mallory"), ("cluster",)
    ),
    "revoke_token": Sample(lambda: pb.RevokeTokenRequest(token_id="0123456789ac"), ("cluster",)),
    "list_tokens": Sample(pb.ListTokensRequest, ("cluster",)),
    "change_scram": Sample(pb.ChangeScramRequest, ("cluster",)),
    "list_scram": Sample(pb.ListScramRequest, ("cluster",)),
    "confirm_rules": Sample(pb.ConfirmRulesRequest, FROM_A_BROKER),
    "change_quota": Sample(
        lambda: pb.ChangeQuotaRequest(principal="user:carol", set={"bytes_in": 10**9}), ("cluster",)
    ),
    "list_quotas": Sample(pb.ListQuotasRequest, ("cluster",)),
    "add_bundles": Sample(lambda: pb.AddBundlesRequest(bundles=9, dry_run=True), ("cluster",)),
    "move_partition": Sample(
        lambda: pb.MovePartitionRequest(topic=TOPIC, partition=0, bundle=1, dry_run=True), ("cluster",)
    ),
    "prepare_move": Sample(lambda: pb.PrepareMoveRequest(topic_id=1, partition=0, dry_run=True), FROM_A_BROKER),
    "describe_broker": Sample(pb.DescribeBrokerRequest, ("cluster",)),
    "list_connections": Sample(pb.ListConnectionsRequest, ("cluster",)),
    "list_lags": Sample(pb.ListLagsRequest, ()),
    "list_loads": Sample(pb.ListLoadsRequest, ("cluster",)),
    "list_costs": Sample(pb.ListCostsRequest, ("cluster",)),
    "drop_table": Sample(lambda: pb.DropTableRequest(topic=TOPIC), ("alter orders",)),
    "take_cut": Sample(lambda: pb.TakeCutRequest(name="c"), ("cluster",)),
    "list_cuts": Sample(pb.ListCutsRequest, ("cluster",)),
    "keep_cut": Sample(lambda: pb.KeepCutRequest(name="c"), ("cluster",)),
    "drop_cut": Sample(lambda: pb.DropCutRequest(name="c"), ("cluster",)),
    "list_cut_files": Sample(lambda: pb.ListCutFilesRequest(name="c", topic=TOPIC), ("describe orders",)),
    "read_cut": Sample(lambda: pb.ReadCutRequest(name="c", topic=TOPIC), ("consume orders",)),
    "hold_for_cut": Sample(lambda: pb.HoldForCutRequest(bundle=1, cut=5), FROM_A_BROKER),
    "list_undecoded": Sample(lambda: pb.ListUndecodedRequest(topic=TOPIC), ("consume orders",)),
    "describe_lake": Sample(pb.DescribeLakeRequest, ("cluster",)),
    "describe_table": Sample(lambda: pb.DescribeTableRequest(topic=TOPIC), ("describe orders",)),
    "put_schema": Sample(
        lambda: pb.PutSchemaRequest(subject=f"{TOPIC}-value", kind="json", text="{}", compatibility="full"),
        ("produce orders", "alter orders"),
    ),
    "describe_schema": Sample(lambda: pb.DescribeSchemaRequest(subject=f"{TOPIC}-value"), ("describe orders",)),
    "list_schemas": Sample(pb.ListSchemasRequest, ()),
    "delete_schema": Sample(lambda: pb.DeleteSchemaRequest(subject=f"{TOPIC}-value"), ("delete orders",)),
    "drain_broker": Sample(lambda: pb.DrainBrokerRequest(address="another:1"), ("cluster",)),
    "slowest_commits": Sample(pb.SlowestCommitsRequest, FROM_A_BROKER),
    "hold_partitions": Sample(
        lambda: pb.HoldPartitionsRequest(
            producer_id=EXCLUSIVE, partitions=[pb.WantedPartition(topic=TOPIC, partition=0, number=0)]
        ),
        ("produce orders",),
    ),
    "release_partitions": Sample(
        lambda: pb.ReleasePartitionsRequest(
            producer_id=EXCLUSIVE, partitions=[pb.WantedPartition(topic=TOPIC, partition=0)]
        ),
        ("produce orders",),
    ),
    "share_fetch": Sample(
        lambda: pb.ShareFetchRequest(group="billing", member_id="m", partitions=[pb.SharePartition(topic=TOPIC)]),
        ("group billing", "consume orders"),
    ),
    "share_answer": Sample(
        lambda: pb.ShareAnswerRequest(
            group="billing", member_id="m", partitions=[pb.SharePartitionAnswer(topic=TOPIC)]
        ),
        ("group billing", "consume orders"),
    ),
    "reset_shares": Sample(
        lambda: pb.ResetSharesRequest(group="billing", resets=[pb.ShareReset(topic=TOPIC, offset=0)]),
        ("group billing", "consume orders"),
    ),
    "list_shares": Sample(lambda: pb.ListSharesRequest(bundle=1), ()),
}


def test_every_method_has_a_guard() -> None:
    """A new method without one cannot be called by anybody; this says so before a user does."""
    assert GUARDS.keys() == {method.attribute for method in METHODS}
    for method in METHODS:
        streams = method.kind is not Kind.UNARY
        assert streams == (GUARDS[method.attribute] is None), method.name
        assert streams == (method.attribute in vars(AuthorizedService)), method.name


def test_every_method_has_a_sample() -> None:
    assert SAMPLES.keys() == GUARDS.keys()


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
@in_cluster("a:1", "b:1", **RULES)
async def test_a_method_by_every_kind_of_caller(cluster: Cluster, method: Method) -> None:
    sample = SAMPLES[method.attribute]
    await cluster.create(TOPIC, 1, token=(root := await token(cluster, "root")).text)
    expired = await token(cluster, "alice", expires_ms=cluster.now_ms() + 1000)
    revoked, alice = await token(cluster, "alice"), await token(cluster, "alice", "staff")
    await cluster.line("a:1", root.text).revoke_token(pb.RevokeTokenRequest(token_id=revoked.token_id))
    await change(cluster, grant=["allow user:bob consume *", "allow user:alice describe other"])
    await asyncio.sleep(1.1)

    async def refused(secret: str) -> bool:
        return is_refused(await call(cluster.line("a:1", secret), method, sample.request()))

    wrong = alice.text[:-3] + "zzz"
    for credential in ("", wrong, expired.text, revoked.text, "lmq_", "no-token-at-all"):
        assert await refused(credential), credential
    assert await refused(alice.text) == (sample.rules != ())
    if isinstance(sample.rules, str):
        assert await refused(root.text), "super principals are no brokers"
        broker = cluster.brokers["b:1"].credentials
        line = cluster.line("a:1", credential=broker.credential("a:1"))
        assert not is_refused(await call(line, method, sample.request()))
        return
    assert not await refused(root.text)
    for number, rule in enumerate(sample.rules):
        missing = [other for other in sample.rules if other != rule]
        ids = await change(cluster, grant=[f"allow group:staff {other}" for other in missing])
        if number or len(sample.rules) > 1:
            assert await refused(alice.text), f"without {rule}"
        await change(cluster, revoke=ids)
    await change(cluster, grant=[f"allow group:staff {rule}" for rule in sample.rules])
    assert not await refused(alice.text)
    if sample.rules:
        await change(cluster, grant=[f"deny user:alice {sample.rules[0]}"])
        assert await refused(alice.text)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
@in_cluster("a:1", **RULES)
async def test_no_answer_names_a_topic_that_the_caller_may_not_see(cluster: Cluster, method: Method) -> None:
    """Not even as a hint: the caller may do everything to a name that does not exist, one letter off."""
    hidden = f"{TOPIC}z"
    root = (await token(cluster, "root")).text
    await cluster.create(hidden, 1, token=root)
    rights = [f"allow user:bob {of_topics} {TOPIC}" for of_topics in ("produce,consume,create,alter,delete",)]
    await change(cluster, grant=[*rights, "allow user:bob group *", "allow user:bob transaction *"])
    bob = await token(cluster, "bob")
    answer = await call(cluster.line("a:1", bob.text), method, SAMPLES[method.attribute].request())
    text = answer.message if isinstance(answer, LedgerMQError) else str(message_of(answer))
    assert hidden not in text


def _forwarded() -> list[tuple[str, Any]]:
    kinds = {
        "create_topic": pb.CreateTopicRequest(name="__consumer_offsets", forwarded=True),
        "alter_topic": pb.AlterTopicRequest(name=TOPIC, forwarded=True),
        "delete_topic": pb.DeleteTopicRequest(name=TOPIC, forwarded=True),
        "undelete_topic": pb.UndeleteTopicRequest(name=TOPIC, forwarded=True),
        "change_rules": pb.ChangeRulesRequest(forwarded=True),
        "create_token": pb.CreateTokenRequest(forwarded=True),
        "revoke_token": pb.RevokeTokenRequest(forwarded=True),
        "change_scram": pb.ChangeScramRequest(forwarded=True),
        "change_quota": pb.ChangeQuotaRequest(forwarded=True),
        "add_bundles": pb.AddBundlesRequest(bundles=9, forwarded=True),
        "move_partition": pb.MovePartitionRequest(topic=TOPIC, bundle=1, forwarded=True),
        "put_schema": pb.PutSchemaRequest(subject=TOPIC, kind="json", text="{}", forwarded=True),
        "delete_schema": pb.DeleteSchemaRequest(subject=TOPIC, forwarded=True),
        "take_cut": pb.TakeCutRequest(name="c", forwarded=True),
        "keep_cut": pb.KeepCutRequest(name="c", forwarded=True),
        "drop_cut": pb.DropCutRequest(name="c", forwarded=True),
    }
    return list(kinds.items())


def test_every_request_that_can_be_forwarded_is_in_the_list() -> None:
    having = {
        method.attribute
        for method in METHODS
        if "forwarded" in getattr(pb, f"{method.name}Request", pb.ProduceRequest).DESCRIPTOR.fields_by_name
    }
    assert having == {attribute for attribute, _ in _forwarded()}


@pytest.mark.parametrize(("attribute", "request_"), _forwarded(), ids=lambda each: str(each)[:20])
@in_cluster("a:1", **RULES)
async def test_only_a_broker_may_forward(cluster: Cluster, attribute: str, request_: Any) -> None:
    root = await token(cluster, "root")
    method = next(method for method in METHODS if method.attribute == attribute)
    assert is_refused(await call(cluster.line("a:1", root.text), method, request_))


@pytest.mark.parametrize("topic", ["__metadata", "__consumer_offsets", "__staged", "__anything"])
@in_cluster("a:1", **RULES)
async def test_internal_topics_are_for_brokers(cluster: Cluster, topic: str) -> None:
    root = await token(cluster, "root")
    await change(cluster, grant=["allow * produce,consume,describe,create,alter,delete *"])
    alice = await token(cluster, "alice")
    requests: dict[str, Any] = {
        "produce_once": frame_of(topic, 0, b"x"),
        "produce": frame_of(topic, 0, b"x"),
        "fetch_once": fetch_of(topic, 0),
        "fetch": fetch_of(topic, 0),
        "list_offsets": pb.ListOffsetsRequest(queries=[pb.OffsetQuery(topic=topic, durable=True)]),
        "describe_topics": pb.DescribeTopicsRequest(topics=[topic]),
        "find_messages": pb.FindMessagesRequest(topic=topic, offset=0),
        "delete_topic": pb.DeleteTopicRequest(name=topic),
        "undelete_topic": pb.UndeleteTopicRequest(name=topic),
        "stage": Frame(_staged_header(topic), [b"x"]),
    }
    for attribute, request in requests.items():
        method = next(method for method in METHODS if method.attribute == attribute)
        for caller in (root, alice):
            assert is_refused(await call(cluster.line("a:1", caller.text), method, request)), (attribute, caller)


def _staged_header(topic: str) -> pb.StageHeader:
    batch = pb.StageBatch(batch=pb.ProduceBatch(topic=topic, length=1, record_count=1))
    return pb.StageHeader(transaction=REF, batches=[batch])


def _with_id(message: Any, topic_id: int) -> bool:
    """Set the id wherever a message names a topic by both; return whether there is such a place."""
    found = {"topic", "topic_id"} <= set(message.DESCRIPTOR.fields_by_name.keys()) and message.topic == TOPIC
    if found:
        message.topic_id = topic_id
    for field, value in message.ListFields():
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for each in [value] if isinstance(value, Message) else value:
                found = _with_id(each, topic_id) or found
    return found


def _both_ways() -> list[Method]:
    return [method for method in METHODS if _with_id(message_of(SAMPLES[method.attribute].request()), 1)]


@pytest.mark.parametrize("method", _both_ways(), ids=lambda method: method.name)
@in_cluster("a:1", **RULES)
async def test_a_name_with_the_id_of_another_topic_is_refused(cluster: Cluster, method: Method) -> None:
    """Rules judge names. What a caller may do with a topic it must not do to another one by its id."""
    root = (await token(cluster, "root")).text
    await cluster.create(TOPIC, 1, token=root)
    secret = await cluster.create("secret", 1, token=root)
    stored = await cluster.line("a:1", root).produce_once(frame_of("secret", 0, b"hidden"))
    delayed = await cluster.line("a:1", root).produce_delayed_once(frame_of(TOPIC, 0, b"later"))
    assert not list(codes_of(stored)) + list(codes_of(delayed))
    alice = (await token(cluster, "alice")).text
    everything = "produce,consume,describe,create,alter,delete"
    await change(cluster, grant=[f"allow user:alice {everything} {TOPIC}", f"allow user:alice group {GROUP}"])
    await change(cluster, grant=["allow user:alice transaction pay-*"])
    request = SAMPLES[method.attribute].request()
    assert _with_id(message_of(request), secret.topic_id)
    answer = await call(cluster.line("a:1", alice), method, request)
    assert isinstance(answer, LedgerMQError) or list(codes_of(answer))
    assert b"hidden" not in (b"".join(map(bytes, answer.payload)) if isinstance(answer, Frame) else b"")
    queries = [pb.OffsetQuery(topic="secret", earliest=True), pb.OffsetQuery(topic="secret", latest=True)]
    ends = await cluster.line("a:1", root).list_offsets(pb.ListOffsetsRequest(queries=queries))
    assert [result.offset for result in ends.results] == [0, 1]
