"""Answer DescribeCluster: what Metadata says of brokers. No operations are named, since rules here are others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ledgermq_broker.kafka.brokers import Brokers
from ledgermq_broker.kafka.handlers.asked import Asked, Handler
from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.generated import describe_cluster_request as asked_cluster
from ledgermq_broker.kafka.wire.generated import describe_cluster_response as described
from ledgermq_broker.kafka.wire.messages import DESCRIBE_CLUSTER, Api

BROKERS, CONTROLLERS = 1, 2
"""Kinds of endpoints."""


def answers(brokers: Brokers) -> Mapping[Api, Handler]:
    """Return the handler of each API."""

    async def describe(asked: Asked) -> Any:
        return _described(asked.message, brokers)

    return {DESCRIBE_CLUSTER: describe}


def _described(request: asked_cluster.DescribeClusterRequest, brokers: Brokers) -> described.DescribeClusterResponse:
    answer = described.DescribeClusterResponse(endpoint_type=request.endpoint_type, cluster_id=brokers.cluster_id)
    if request.endpoint_type != BROKERS:
        is_known = request.endpoint_type == CONTROLLERS
        answer.error_code = Code.MISMATCHED_ENDPOINT_TYPE if is_known else Code.UNSUPPORTED_ENDPOINT_TYPE
        answer.error_message = f"only brokers ({BROKERS}) have endpoints here, not type {request.endpoint_type}"
        return answer
    answer.controller_id = brokers.me
    answer.brokers = [
        described.DescribeClusterBroker(broker_id=one.node, host=one.host, port=one.port, rack=one.rack)
        for one in brokers.present()
    ]
    return answer
