"""The methods of the service `ledgermq.v1.Broker` as a table, from which gRPC clients and servers
are built, and the unary calls of a connection (`UnaryCalls`).

gRPC itself gets no (de)serializers: it carries bytes, and the handler of a call decodes them with
this table. So bytes that cannot be decoded give a typed CorruptFrame in one place, not an internal
error of the library, and frames are never copied through protobuf. Invariant (tested): the table
has exactly the methods of the .proto, each with its streaming kind, and each `attribute` is a
method of `ledgermq.protocol.api.BrokerApi`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from ledgermq.errors import CorruptFrame
from ledgermq.protocol import frames
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.list_bounds import check_lists

SERVICE = "ledgermq.v1.Broker"

M = TypeVar("M", bound=Message)


class Kind(Enum):
    UNARY = "one request, one response"
    SERVER_STREAM = "one request, a stream of responses"
    BIDI_STREAM = "a stream of each"


@dataclass(frozen=True, slots=True)
class Method:
    """A method. `encode_*`: value of BrokerApi -> bytes.

    `decode_*`: bytes -> value; raises CorruptFrame, for a request also InvalidRequest if a list in it is
    longer than its bound (`list_bounds`), and no other error.
    """

    name: str
    attribute: str
    kind: Kind
    encode_request: Callable[[Any], bytes]
    decode_request: Callable[[bytes], Any]
    encode_response: Callable[[Any], bytes]
    decode_response: Callable[[bytes], Any]

    @property
    def path(self) -> str:
        """Return its gRPC path: "/ledgermq.v1.Broker/Produce"."""
        return f"/{SERVICE}/{self.name}"


def _decoder(kind: type[M]) -> Callable[[bytes], M]:
    def decode(data: bytes) -> M:
        message = kind()
        try:
            message.ParseFromString(data)
        except DecodeError as error:
            raise CorruptFrame(f"not a valid {kind.DESCRIPTOR.name}: {error}") from error
        return message

    return decode


def _request_decoder(kind: type[M]) -> Callable[[bytes], M]:
    decode = _decoder(kind)

    def decode_request(data: bytes) -> M:
        message = decode(data)
        check_lists(message)
        return message

    return decode_request


def _frame_decoder(decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def decode_request(data: bytes) -> Any:
        frame = decode(data)
        check_lists(frame.header)
        return frame

    return decode_request


_decode_produce = _frame_decoder(frames.decode_produce)
_decode_stage = _frame_decoder(frames.decode_stage)


def _encode(message: Message) -> bytes:
    return message.SerializeToString()


def _unary(name: str, attribute: str, request: type[Message], response: type[Message]) -> Method:
    return Method(name, attribute, Kind.UNARY, _encode, _request_decoder(request), _encode, _decoder(response))


PRODUCE = Method(
    "Produce",
    "produce",
    Kind.BIDI_STREAM,
    frames.encode_frame,
    _decode_produce,
    _encode,
    _decoder(pb.ProduceResponse),
)
PRODUCE_ONCE = Method(
    "ProduceOnce",
    "produce_once",
    Kind.UNARY,
    frames.encode_frame,
    _decode_produce,
    _encode,
    _decoder(pb.ProduceResponse),
)
FETCH = Method(
    "Fetch",
    "fetch",
    Kind.SERVER_STREAM,
    _encode,
    _request_decoder(pb.FetchRequest),
    frames.encode_frame,
    frames.decode_fetch,
)
FETCH_ONCE = Method(
    "FetchOnce",
    "fetch_once",
    Kind.UNARY,
    _encode,
    _request_decoder(pb.FetchRequest),
    frames.encode_frame,
    frames.decode_fetch,
)
LIST_OFFSETS = _unary("ListOffsets", "list_offsets", pb.ListOffsetsRequest, pb.ListOffsetsResponse)
OPEN_PRODUCER = _unary("OpenProducer", "open_producer", pb.OpenProducerRequest, pb.OpenProducerResponse)
DESCRIBE_CLUSTER = _unary("DescribeCluster", "describe_cluster", pb.DescribeClusterRequest, pb.DescribeClusterResponse)
DESCRIBE_TOPICS = _unary("DescribeTopics", "describe_topics", pb.DescribeTopicsRequest, pb.DescribeTopicsResponse)
CREATE_TOPIC = _unary("CreateTopic", "create_topic", pb.CreateTopicRequest, pb.CreateTopicResponse)
ALTER_TOPIC = _unary("AlterTopic", "alter_topic", pb.AlterTopicRequest, pb.AlterTopicResponse)
DELETE_TOPIC = _unary("DeleteTopic", "delete_topic", pb.DeleteTopicRequest, pb.DeleteTopicResponse)
DELETE_RECORDS = _unary("DeleteRecords", "delete_records", pb.DeleteRecordsRequest, pb.DeleteRecordsResponse)
FIND_MESSAGES = _unary("FindMessages", "find_messages", pb.FindMessagesRequest, pb.FindMessagesResponse)
GROUP_HEARTBEAT = _unary("GroupHeartbeat", "group_heartbeat", pb.GroupHeartbeatRequest, pb.GroupHeartbeatResponse)
COMMIT_OFFSETS = _unary("CommitOffsets", "commit_offsets", pb.CommitOffsetsRequest, pb.CommitOffsetsResponse)
FETCH_COMMITTED = _unary("FetchCommitted", "fetch_committed", pb.FetchCommittedRequest, pb.FetchCommittedResponse)
RESET_OFFSETS = _unary("ResetOffsets", "reset_offsets", pb.ResetOffsetsRequest, pb.ResetOffsetsResponse)
LIST_GROUPS = _unary("ListGroups", "list_groups", pb.ListGroupsRequest, pb.ListGroupsResponse)
DESCRIBE_GROUP = _unary("DescribeGroup", "describe_group", pb.DescribeGroupRequest, pb.DescribeGroupResponse)
DELETE_GROUP = _unary("DeleteGroup", "delete_group", pb.DeleteGroupRequest, pb.DeleteGroupResponse)
STAGE = Method(
    "Stage",
    "stage",
    Kind.BIDI_STREAM,
    frames.encode_frame,
    _decode_stage,
    _encode,
    _decoder(pb.StageResponse),
)
STAGE_DELAYED = Method(
    "StageDelayed",
    "stage_delayed",
    Kind.BIDI_STREAM,
    frames.encode_frame,
    _decode_stage,
    _encode,
    _decoder(pb.StageResponse),
)
STAGE_OFFSETS = _unary("StageOffsets", "stage_offsets", pb.StageOffsetsRequest, pb.StageOffsetsResponse)
INIT_TRANSACTIONS = _unary(
    "InitTransactions", "init_transactions", pb.InitTransactionsRequest, pb.InitTransactionsResponse
)
END_TRANSACTION = _unary("EndTransaction", "end_transaction", pb.EndTransactionRequest, pb.EndTransactionResponse)
TRANSACTION_OUTCOME = _unary(
    "TransactionOutcome", "transaction_outcome", pb.TransactionOutcomeRequest, pb.TransactionOutcomeResponse
)
RESOLVE_TRANSACTION = _unary(
    "ResolveTransaction", "resolve_transaction", pb.ResolveTransactionRequest, pb.ResolveTransactionResponse
)
LIST_TRANSACTIONS = _unary(
    "ListTransactions", "list_transactions", pb.ListTransactionsRequest, pb.ListTransactionsResponse
)
DESCRIBE_TRANSACTION = _unary(
    "DescribeTransaction", "describe_transaction", pb.DescribeTransactionRequest, pb.DescribeTransactionResponse
)
COMPLETE_TRANSACTION = _unary(
    "CompleteTransaction", "complete_transaction", pb.CompleteTransactionRequest, pb.CompleteTransactionResponse
)
ASK_TRANSACTION = _unary("AskTransaction", "ask_transaction", pb.AskTransactionRequest, pb.AskTransactionResponse)
POLL_CHECKS = _unary("PollChecks", "poll_checks", pb.PollChecksRequest, pb.PollChecksResponse)
READ_STAGED = _unary("ReadStaged", "read_staged", pb.ReadStagedRequest, pb.ReadStagedResponse)
PRODUCE_DELAYED = Method(
    "ProduceDelayed",
    "produce_delayed",
    Kind.BIDI_STREAM,
    frames.encode_frame,
    _decode_produce,
    _encode,
    _decoder(pb.ProduceResponse),
)
PRODUCE_DELAYED_ONCE = Method(
    "ProduceDelayedOnce",
    "produce_delayed_once",
    Kind.UNARY,
    frames.encode_frame,
    _decode_produce,
    _encode,
    _decoder(pb.ProduceResponse),
)
RECALL_DELAYED = _unary("RecallDelayed", "recall_delayed", pb.RecallDelayedRequest, pb.RecallDelayedResponse)
LIST_DELAYED = _unary("ListDelayed", "list_delayed", pb.ListDelayedRequest, pb.ListDelayedResponse)
SHARE_FETCH = Method(
    "ShareFetch",
    "share_fetch",
    Kind.UNARY,
    _encode,
    _request_decoder(pb.ShareFetchRequest),
    frames.encode_frame,
    frames.decode_share_fetch,
)
SHARE_ANSWER = _unary("ShareAnswer", "share_answer", pb.ShareAnswerRequest, pb.ShareAnswerResponse)
RESET_SHARES = _unary("ResetShares", "reset_shares", pb.ResetSharesRequest, pb.ResetSharesResponse)
LIST_SHARES = _unary("ListShares", "list_shares", pb.ListSharesRequest, pb.ListSharesResponse)
HOLD_PARTITIONS = _unary("HoldPartitions", "hold_partitions", pb.HoldPartitionsRequest, pb.HoldPartitionsResponse)
RELEASE_PARTITIONS = _unary(
    "ReleasePartitions", "release_partitions", pb.ReleasePartitionsRequest, pb.ReleasePartitionsResponse
)
CHANGE_RULES = _unary("ChangeRules", "change_rules", pb.ChangeRulesRequest, pb.ChangeRulesResponse)
LIST_RULES = _unary("ListRules", "list_rules", pb.ListRulesRequest, pb.ListRulesResponse)
TEST_RULES = _unary("TestRules", "test_rules", pb.TestRulesRequest, pb.TestRulesResponse)
CREATE_TOKEN = _unary("CreateToken", "create_token", pb.CreateTokenRequest, pb.CreateTokenResponse)
REVOKE_TOKEN = _unary("RevokeToken", "revoke_token", pb.RevokeTokenRequest, pb.RevokeTokenResponse)
LIST_TOKENS = _unary("ListTokens", "list_tokens", pb.ListTokensRequest, pb.ListTokensResponse)
CONFIRM_RULES = _unary("ConfirmRules", "confirm_rules", pb.ConfirmRulesRequest, pb.ConfirmRulesResponse)
CHANGE_QUOTA = _unary("ChangeQuota", "change_quota", pb.ChangeQuotaRequest, pb.ChangeQuotaResponse)
LIST_QUOTAS = _unary("ListQuotas", "list_quotas", pb.ListQuotasRequest, pb.ListQuotasResponse)
DRAIN_BROKER = _unary("DrainBroker", "drain_broker", pb.DrainBrokerRequest, pb.DrainBrokerResponse)
SLOWEST_COMMITS = _unary("SlowestCommits", "slowest_commits", pb.SlowestCommitsRequest, pb.SlowestCommitsResponse)
ADD_BUNDLES = _unary("AddBundles", "add_bundles", pb.AddBundlesRequest, pb.AddBundlesResponse)
MOVE_PARTITION = _unary("MovePartition", "move_partition", pb.MovePartitionRequest, pb.MovePartitionResponse)
PREPARE_MOVE = _unary("PrepareMove", "prepare_move", pb.PrepareMoveRequest, pb.PrepareMoveResponse)
LIST_LOADS = _unary("ListLoads", "list_loads", pb.ListLoadsRequest, pb.ListLoadsResponse)

METHODS: tuple[Method, ...] = (
    PRODUCE,
    PRODUCE_ONCE,
    FETCH,
    FETCH_ONCE,
    LIST_OFFSETS,
    OPEN_PRODUCER,
    DESCRIBE_CLUSTER,
    DESCRIBE_TOPICS,
    CREATE_TOPIC,
    ALTER_TOPIC,
    DELETE_TOPIC,
    DELETE_RECORDS,
    FIND_MESSAGES,
    GROUP_HEARTBEAT,
    COMMIT_OFFSETS,
    FETCH_COMMITTED,
    RESET_OFFSETS,
    LIST_GROUPS,
    DESCRIBE_GROUP,
    DELETE_GROUP,
    STAGE,
    STAGE_DELAYED,
    STAGE_OFFSETS,
    INIT_TRANSACTIONS,
    END_TRANSACTION,
    TRANSACTION_OUTCOME,
    RESOLVE_TRANSACTION,
    LIST_TRANSACTIONS,
    DESCRIBE_TRANSACTION,
    COMPLETE_TRANSACTION,
    ASK_TRANSACTION,
    POLL_CHECKS,
    READ_STAGED,
    PRODUCE_DELAYED,
    PRODUCE_DELAYED_ONCE,
    RECALL_DELAYED,
    LIST_DELAYED,
    SHARE_FETCH,
    SHARE_ANSWER,
    RESET_SHARES,
    LIST_SHARES,
    HOLD_PARTITIONS,
    RELEASE_PARTITIONS,
    CHANGE_RULES,
    LIST_RULES,
    TEST_RULES,
    CREATE_TOKEN,
    REVOKE_TOKEN,
    LIST_TOKENS,
    CONFIRM_RULES,
    CHANGE_QUOTA,
    LIST_QUOTAS,
    DRAIN_BROKER,
    SLOWEST_COMMITS,
    ADD_BUNDLES,
    MOVE_PARTITION,
    PREPARE_MOVE,
    LIST_LOADS,
)


class UnaryCalls(ABC):
    """Implements the unary calls of `BrokerApi` through one method `ask`; shared by all
    connections, however they carry a call.
    """

    @abstractmethod
    async def ask(self, method: Method, request: Any, wait_s: float = 0.0) -> Any:
        """Return the answer to one request.

        `wait_s`: how long the callee may hold it on purpose, on top of the call's own time.
        """

    async def produce_once(self, request: frames.ProduceFrame) -> pb.ProduceResponse:
        answer: pb.ProduceResponse = await self.ask(PRODUCE_ONCE, request)
        return answer

    async def fetch_once(self, request: pb.FetchRequest) -> frames.FetchFrame:
        answer: frames.FetchFrame = await self.ask(FETCH_ONCE, request, request.max_wait_ms / 1000)
        return answer

    async def list_offsets(self, request: pb.ListOffsetsRequest) -> pb.ListOffsetsResponse:
        answer: pb.ListOffsetsResponse = await self.ask(LIST_OFFSETS, request)
        return answer

    async def open_producer(self, request: pb.OpenProducerRequest) -> pb.OpenProducerResponse:
        answer: pb.OpenProducerResponse = await self.ask(OPEN_PRODUCER, request)
        return answer

    async def describe_cluster(self, request: pb.DescribeClusterRequest) -> pb.DescribeClusterResponse:
        answer: pb.DescribeClusterResponse = await self.ask(DESCRIBE_CLUSTER, request)
        return answer

    async def describe_topics(self, request: pb.DescribeTopicsRequest) -> pb.DescribeTopicsResponse:
        answer: pb.DescribeTopicsResponse = await self.ask(DESCRIBE_TOPICS, request)
        return answer

    async def create_topic(self, request: pb.CreateTopicRequest) -> pb.CreateTopicResponse:
        answer: pb.CreateTopicResponse = await self.ask(CREATE_TOPIC, request)
        return answer

    async def alter_topic(self, request: pb.AlterTopicRequest) -> pb.AlterTopicResponse:
        answer: pb.AlterTopicResponse = await self.ask(ALTER_TOPIC, request)
        return answer

    async def delete_topic(self, request: pb.DeleteTopicRequest) -> pb.DeleteTopicResponse:
        answer: pb.DeleteTopicResponse = await self.ask(DELETE_TOPIC, request)
        return answer

    async def delete_records(self, request: pb.DeleteRecordsRequest) -> pb.DeleteRecordsResponse:
        answer: pb.DeleteRecordsResponse = await self.ask(DELETE_RECORDS, request)
        return answer

    async def find_messages(self, request: pb.FindMessagesRequest) -> pb.FindMessagesResponse:
        answer: pb.FindMessagesResponse = await self.ask(FIND_MESSAGES, request)
        return answer

    async def group_heartbeat(self, request: pb.GroupHeartbeatRequest) -> pb.GroupHeartbeatResponse:
        answer: pb.GroupHeartbeatResponse = await self.ask(GROUP_HEARTBEAT, request, request.max_wait_ms / 1000)
        return answer

    async def commit_offsets(self, request: pb.CommitOffsetsRequest) -> pb.CommitOffsetsResponse:
        answer: pb.CommitOffsetsResponse = await self.ask(COMMIT_OFFSETS, request)
        return answer

    async def fetch_committed(self, request: pb.FetchCommittedRequest) -> pb.FetchCommittedResponse:
        answer: pb.FetchCommittedResponse = await self.ask(FETCH_COMMITTED, request)
        return answer

    async def reset_offsets(self, request: pb.ResetOffsetsRequest) -> pb.ResetOffsetsResponse:
        answer: pb.ResetOffsetsResponse = await self.ask(RESET_OFFSETS, request)
        return answer

    async def list_groups(self, request: pb.ListGroupsRequest) -> pb.ListGroupsResponse:
        answer: pb.ListGroupsResponse = await self.ask(LIST_GROUPS, request)
        return answer

    async def describe_group(self, request: pb.DescribeGroupRequest) -> pb.DescribeGroupResponse:
        answer: pb.DescribeGroupResponse = await self.ask(DESCRIBE_GROUP, request)
        return answer

    async def delete_group(self, request: pb.DeleteGroupRequest) -> pb.DeleteGroupResponse:
        answer: pb.DeleteGroupResponse = await self.ask(DELETE_GROUP, request)
        return answer

    async def stage_offsets(self, request: pb.StageOffsetsRequest) -> pb.StageOffsetsResponse:
        answer: pb.StageOffsetsResponse = await self.ask(STAGE_OFFSETS, request)
        return answer

    async def init_transactions(self, request: pb.InitTransactionsRequest) -> pb.InitTransactionsResponse:
        answer: pb.InitTransactionsResponse = await self.ask(INIT_TRANSACTIONS, request)
        return answer

    async def end_transaction(self, request: pb.EndTransactionRequest) -> pb.EndTransactionResponse:
        answer: pb.EndTransactionResponse = await self.ask(END_TRANSACTION, request)
        return answer

    async def transaction_outcome(self, request: pb.TransactionOutcomeRequest) -> pb.TransactionOutcomeResponse:
        answer: pb.TransactionOutcomeResponse = await self.ask(TRANSACTION_OUTCOME, request)
        return answer

    async def resolve_transaction(self, request: pb.ResolveTransactionRequest) -> pb.ResolveTransactionResponse:
        answer: pb.ResolveTransactionResponse = await self.ask(RESOLVE_TRANSACTION, request)
        return answer

    async def list_transactions(self, request: pb.ListTransactionsRequest) -> pb.ListTransactionsResponse:
        answer: pb.ListTransactionsResponse = await self.ask(LIST_TRANSACTIONS, request)
        return answer

    async def describe_transaction(self, request: pb.DescribeTransactionRequest) -> pb.DescribeTransactionResponse:
        answer: pb.DescribeTransactionResponse = await self.ask(DESCRIBE_TRANSACTION, request)
        return answer

    async def complete_transaction(self, request: pb.CompleteTransactionRequest) -> pb.CompleteTransactionResponse:
        answer: pb.CompleteTransactionResponse = await self.ask(COMPLETE_TRANSACTION, request)
        return answer

    async def ask_transaction(self, request: pb.AskTransactionRequest) -> pb.AskTransactionResponse:
        answer: pb.AskTransactionResponse = await self.ask(ASK_TRANSACTION, request)
        return answer

    async def poll_checks(self, request: pb.PollChecksRequest) -> pb.PollChecksResponse:
        answer: pb.PollChecksResponse = await self.ask(POLL_CHECKS, request, request.max_wait_ms / 1000)
        return answer

    async def read_staged(self, request: pb.ReadStagedRequest) -> pb.ReadStagedResponse:
        answer: pb.ReadStagedResponse = await self.ask(READ_STAGED, request)
        return answer

    async def produce_delayed_once(self, request: frames.ProduceFrame) -> pb.ProduceResponse:
        answer: pb.ProduceResponse = await self.ask(PRODUCE_DELAYED_ONCE, request)
        return answer

    async def recall_delayed(self, request: pb.RecallDelayedRequest) -> pb.RecallDelayedResponse:
        answer: pb.RecallDelayedResponse = await self.ask(RECALL_DELAYED, request)
        return answer

    async def list_delayed(self, request: pb.ListDelayedRequest) -> pb.ListDelayedResponse:
        answer: pb.ListDelayedResponse = await self.ask(LIST_DELAYED, request)
        return answer

    async def share_fetch(self, request: pb.ShareFetchRequest) -> frames.ShareFetchFrame:
        answer: frames.ShareFetchFrame = await self.ask(SHARE_FETCH, request, request.max_wait_ms / 1000)
        return answer

    async def share_answer(self, request: pb.ShareAnswerRequest) -> pb.ShareAnswerResponse:
        answer: pb.ShareAnswerResponse = await self.ask(SHARE_ANSWER, request)
        return answer

    async def reset_shares(self, request: pb.ResetSharesRequest) -> pb.ResetSharesResponse:
        answer: pb.ResetSharesResponse = await self.ask(RESET_SHARES, request)
        return answer

    async def list_shares(self, request: pb.ListSharesRequest) -> pb.ListSharesResponse:
        answer: pb.ListSharesResponse = await self.ask(LIST_SHARES, request)
        return answer

    async def hold_partitions(self, request: pb.HoldPartitionsRequest) -> pb.HoldPartitionsResponse:
        answer: pb.HoldPartitionsResponse = await self.ask(HOLD_PARTITIONS, request)
        return answer

    async def release_partitions(self, request: pb.ReleasePartitionsRequest) -> pb.ReleasePartitionsResponse:
        answer: pb.ReleasePartitionsResponse = await self.ask(RELEASE_PARTITIONS, request)
        return answer

    async def change_rules(self, request: pb.ChangeRulesRequest) -> pb.ChangeRulesResponse:
        answer: pb.ChangeRulesResponse = await self.ask(CHANGE_RULES, request)
        return answer

    async def list_rules(self, request: pb.ListRulesRequest) -> pb.ListRulesResponse:
        answer: pb.ListRulesResponse = await self.ask(LIST_RULES, request)
        return answer

    async def test_rules(self, request: pb.TestRulesRequest) -> pb.TestRulesResponse:
        answer: pb.TestRulesResponse = await self.ask(TEST_RULES, request)
        return answer

    async def create_token(self, request: pb.CreateTokenRequest) -> pb.CreateTokenResponse:
        answer: pb.CreateTokenResponse = await self.ask(CREATE_TOKEN, request)
        return answer

    async def revoke_token(self, request: pb.RevokeTokenRequest) -> pb.RevokeTokenResponse:
        answer: pb.RevokeTokenResponse = await self.ask(REVOKE_TOKEN, request)
        return answer

    async def list_tokens(self, request: pb.ListTokensRequest) -> pb.ListTokensResponse:
        answer: pb.ListTokensResponse = await self.ask(LIST_TOKENS, request)
        return answer

    async def confirm_rules(self, request: pb.ConfirmRulesRequest) -> pb.ConfirmRulesResponse:
        answer: pb.ConfirmRulesResponse = await self.ask(CONFIRM_RULES, request)
        return answer

    async def change_quota(self, request: pb.ChangeQuotaRequest) -> pb.ChangeQuotaResponse:
        answer: pb.ChangeQuotaResponse = await self.ask(CHANGE_QUOTA, request)
        return answer

    async def list_quotas(self, request: pb.ListQuotasRequest) -> pb.ListQuotasResponse:
        answer: pb.ListQuotasResponse = await self.ask(LIST_QUOTAS, request)
        return answer

    async def drain_broker(self, request: pb.DrainBrokerRequest) -> pb.DrainBrokerResponse:
        answer: pb.DrainBrokerResponse = await self.ask(DRAIN_BROKER, request)
        return answer

    async def slowest_commits(self, request: pb.SlowestCommitsRequest) -> pb.SlowestCommitsResponse:
        answer: pb.SlowestCommitsResponse = await self.ask(SLOWEST_COMMITS, request)
        return answer

    async def add_bundles(self, request: pb.AddBundlesRequest) -> pb.AddBundlesResponse:
        answer: pb.AddBundlesResponse = await self.ask(ADD_BUNDLES, request)
        return answer

    async def move_partition(self, request: pb.MovePartitionRequest) -> pb.MovePartitionResponse:
        answer: pb.MovePartitionResponse = await self.ask(MOVE_PARTITION, request)
        return answer

    async def prepare_move(self, request: pb.PrepareMoveRequest) -> pb.PrepareMoveResponse:
        answer: pb.PrepareMoveResponse = await self.ask(PREPARE_MOVE, request)
        return answer

    async def list_loads(self, request: pb.ListLoadsRequest) -> pb.ListLoadsResponse:
        answer: pb.ListLoadsResponse = await self.ask(LIST_LOADS, request)
        return answer
