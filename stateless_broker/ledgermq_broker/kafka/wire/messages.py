"""The APIs of the Kafka protocol whose messages are known here, by their keys."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Protocol, Self

from ledgermq.buffers import Buffer
from ledgermq_broker.kafka.wire.generated import (
    add_offsets_to_txn_request,
    add_offsets_to_txn_response,
    add_partitions_to_txn_request,
    add_partitions_to_txn_response,
    alter_client_quotas_request,
    alter_client_quotas_response,
    alter_configs_request,
    alter_configs_response,
    alter_share_group_offsets_request,
    alter_share_group_offsets_response,
    alter_user_scram_credentials_request,
    alter_user_scram_credentials_response,
    api_versions_request,
    api_versions_response,
    consumer_group_describe_request,
    consumer_group_describe_response,
    consumer_group_heartbeat_request,
    consumer_group_heartbeat_response,
    create_acls_request,
    create_acls_response,
    create_partitions_request,
    create_partitions_response,
    create_topics_request,
    create_topics_response,
    delete_acls_request,
    delete_acls_response,
    delete_groups_request,
    delete_groups_response,
    delete_records_request,
    delete_records_response,
    delete_share_group_offsets_request,
    delete_share_group_offsets_response,
    delete_topics_request,
    delete_topics_response,
    describe_acls_request,
    describe_acls_response,
    describe_client_quotas_request,
    describe_client_quotas_response,
    describe_cluster_request,
    describe_cluster_response,
    describe_configs_request,
    describe_configs_response,
    describe_groups_request,
    describe_groups_response,
    describe_log_dirs_request,
    describe_log_dirs_response,
    describe_share_group_offsets_request,
    describe_share_group_offsets_response,
    describe_transactions_request,
    describe_transactions_response,
    describe_user_scram_credentials_request,
    describe_user_scram_credentials_response,
    end_txn_request,
    end_txn_response,
    fetch_request,
    fetch_response,
    find_coordinator_request,
    find_coordinator_response,
    heartbeat_request,
    heartbeat_response,
    incremental_alter_configs_request,
    incremental_alter_configs_response,
    init_producer_id_request,
    init_producer_id_response,
    join_group_request,
    join_group_response,
    leave_group_request,
    leave_group_response,
    list_groups_request,
    list_groups_response,
    list_offsets_request,
    list_offsets_response,
    list_transactions_request,
    list_transactions_response,
    metadata_request,
    metadata_response,
    offset_commit_request,
    offset_commit_response,
    offset_delete_request,
    offset_delete_response,
    offset_fetch_request,
    offset_fetch_response,
    offset_for_leader_epoch_request,
    offset_for_leader_epoch_response,
    produce_request,
    produce_response,
    sasl_authenticate_request,
    sasl_authenticate_response,
    sasl_handshake_request,
    sasl_handshake_response,
    share_acknowledge_request,
    share_acknowledge_response,
    share_fetch_request,
    share_fetch_response,
    share_group_describe_request,
    share_group_describe_response,
    share_group_heartbeat_request,
    share_group_heartbeat_response,
    sync_group_request,
    sync_group_response,
    txn_offset_commit_request,
    txn_offset_commit_response,
)
from ledgermq_broker.kafka.wire.primitives import Put, Reader


class Message(Protocol):
    """A generated request or response."""

    @classmethod
    def read(cls, r: Reader, version: int) -> Self: ...

    def write(self, put: Put, version: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Api:
    """`versions`: those that the definitions describe. `flexible_from`: the first version with tagged fields."""

    name: str
    key: int
    versions: tuple[int, int]
    flexible_from: int
    request: type[Message]
    response: type[Message]
    carries_records: bool = False
    plain_response_head: bool = False

    def reads(self, version: int) -> bool:
        return self.versions[0] <= version <= self.versions[1]


def _api(request: ModuleType, response: ModuleType, **more: bool) -> Api:
    """Return the API of two generated modules. `more`: fields of `Api` that are not False."""
    name = request.__name__.rpartition(".")[2].removesuffix("_request").title().replace("_", "")
    return Api(
        name,
        request.API_KEY,
        request.VERSIONS,
        request.FLEXIBLE_FROM,
        getattr(request, f"{name}Request"),
        getattr(response, f"{name}Response"),
        **more,
    )


PRODUCE = _api(produce_request, produce_response, carries_records=True)
FETCH = _api(fetch_request, fetch_response)
LIST_OFFSETS = _api(list_offsets_request, list_offsets_response)
METADATA = _api(metadata_request, metadata_response)
API_VERSIONS = _api(api_versions_request, api_versions_response, plain_response_head=True)
INIT_PRODUCER_ID = _api(init_producer_id_request, init_producer_id_response)
OFFSET_FOR_LEADER_EPOCH = _api(offset_for_leader_epoch_request, offset_for_leader_epoch_response)
FIND_COORDINATOR = _api(find_coordinator_request, find_coordinator_response)
JOIN_GROUP = _api(join_group_request, join_group_response)
SYNC_GROUP = _api(sync_group_request, sync_group_response)
HEARTBEAT = _api(heartbeat_request, heartbeat_response)
LEAVE_GROUP = _api(leave_group_request, leave_group_response)
OFFSET_COMMIT = _api(offset_commit_request, offset_commit_response)
OFFSET_FETCH = _api(offset_fetch_request, offset_fetch_response)
DESCRIBE_GROUPS = _api(describe_groups_request, describe_groups_response)
LIST_GROUPS = _api(list_groups_request, list_groups_response)
DELETE_GROUPS = _api(delete_groups_request, delete_groups_response)
OFFSET_DELETE = _api(offset_delete_request, offset_delete_response)
CONSUMER_GROUP_HEARTBEAT = _api(consumer_group_heartbeat_request, consumer_group_heartbeat_response)
CONSUMER_GROUP_DESCRIBE = _api(consumer_group_describe_request, consumer_group_describe_response)
SHARE_GROUP_HEARTBEAT = _api(share_group_heartbeat_request, share_group_heartbeat_response)
SHARE_GROUP_DESCRIBE = _api(share_group_describe_request, share_group_describe_response)
SHARE_FETCH = _api(share_fetch_request, share_fetch_response)
SHARE_ACKNOWLEDGE = _api(share_acknowledge_request, share_acknowledge_response)
DESCRIBE_SHARE_GROUP_OFFSETS = _api(describe_share_group_offsets_request, describe_share_group_offsets_response)
ALTER_SHARE_GROUP_OFFSETS = _api(alter_share_group_offsets_request, alter_share_group_offsets_response)
DELETE_SHARE_GROUP_OFFSETS = _api(delete_share_group_offsets_request, delete_share_group_offsets_response)
CREATE_TOPICS = _api(create_topics_request, create_topics_response)
CREATE_PARTITIONS = _api(create_partitions_request, create_partitions_response)
DELETE_TOPICS = _api(delete_topics_request, delete_topics_response)
DELETE_RECORDS = _api(delete_records_request, delete_records_response)
DESCRIBE_CONFIGS = _api(describe_configs_request, describe_configs_response)
INCREMENTAL_ALTER_CONFIGS = _api(incremental_alter_configs_request, incremental_alter_configs_response)
ALTER_CONFIGS = _api(alter_configs_request, alter_configs_response)
DESCRIBE_CLUSTER = _api(describe_cluster_request, describe_cluster_response)
ADD_PARTITIONS_TO_TXN = _api(add_partitions_to_txn_request, add_partitions_to_txn_response)
ADD_OFFSETS_TO_TXN = _api(add_offsets_to_txn_request, add_offsets_to_txn_response)
TXN_OFFSET_COMMIT = _api(txn_offset_commit_request, txn_offset_commit_response)
END_TXN = _api(end_txn_request, end_txn_response)
DESCRIBE_TRANSACTIONS = _api(describe_transactions_request, describe_transactions_response)
LIST_TRANSACTIONS = _api(list_transactions_request, list_transactions_response)
DESCRIBE_ACLS = _api(describe_acls_request, describe_acls_response)
CREATE_ACLS = _api(create_acls_request, create_acls_response)
DELETE_ACLS = _api(delete_acls_request, delete_acls_response)
DESCRIBE_CLIENT_QUOTAS = _api(describe_client_quotas_request, describe_client_quotas_response)
ALTER_CLIENT_QUOTAS = _api(alter_client_quotas_request, alter_client_quotas_response)
DESCRIBE_USER_SCRAM_CREDENTIALS = _api(
    describe_user_scram_credentials_request, describe_user_scram_credentials_response
)
ALTER_USER_SCRAM_CREDENTIALS = _api(alter_user_scram_credentials_request, alter_user_scram_credentials_response)
DESCRIBE_LOG_DIRS = _api(describe_log_dirs_request, describe_log_dirs_response)
SASL_HANDSHAKE = _api(sasl_handshake_request, sasl_handshake_response)
SASL_AUTHENTICATE = _api(sasl_authenticate_request, sasl_authenticate_response)

APIS = (
    PRODUCE,
    FETCH,
    LIST_OFFSETS,
    METADATA,
    API_VERSIONS,
    INIT_PRODUCER_ID,
    OFFSET_FOR_LEADER_EPOCH,
    FIND_COORDINATOR,
    JOIN_GROUP,
    SYNC_GROUP,
    HEARTBEAT,
    LEAVE_GROUP,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    DESCRIBE_GROUPS,
    LIST_GROUPS,
    DELETE_GROUPS,
    OFFSET_DELETE,
    CONSUMER_GROUP_HEARTBEAT,
    CONSUMER_GROUP_DESCRIBE,
    SHARE_GROUP_HEARTBEAT,
    SHARE_GROUP_DESCRIBE,
    SHARE_FETCH,
    SHARE_ACKNOWLEDGE,
    DESCRIBE_SHARE_GROUP_OFFSETS,
    ALTER_SHARE_GROUP_OFFSETS,
    DELETE_SHARE_GROUP_OFFSETS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    CREATE_PARTITIONS,
    DELETE_RECORDS,
    DESCRIBE_CONFIGS,
    INCREMENTAL_ALTER_CONFIGS,
    ALTER_CONFIGS,
    DESCRIBE_CLUSTER,
    ADD_PARTITIONS_TO_TXN,
    ADD_OFFSETS_TO_TXN,
    TXN_OFFSET_COMMIT,
    END_TXN,
    DESCRIBE_TRANSACTIONS,
    LIST_TRANSACTIONS,
    DESCRIBE_ACLS,
    CREATE_ACLS,
    DELETE_ACLS,
    DESCRIBE_LOG_DIRS,
    DESCRIBE_CLIENT_QUOTAS,
    ALTER_CLIENT_QUOTAS,
    DESCRIBE_USER_SCRAM_CREDENTIALS,
    ALTER_USER_SCRAM_CREDENTIALS,
    SASL_HANDSHAKE,
    SASL_AUTHENTICATE,
)
_BY_KEY = {api.key: api for api in APIS}


def api_of(key: int) -> Api | None:
    return _BY_KEY.get(key)


def written(message: Message, version: int) -> list[Buffer]:
    """Return the pieces of a message; records are not copied."""
    pieces: list[Buffer] = []
    message.write(pieces.append, version)
    return pieces


def read_whole(kind: type[Message], reader: Reader, version: int) -> Message:
    """Read a message that ends where its frame does. Raises CorruptFrame."""
    message = kind.read(reader, version)
    reader.check_end()
    return message
