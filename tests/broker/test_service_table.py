"""A broker's service finds the handler of each method by its name; the .proto types it."""

from __future__ import annotations

import inspect

import pytest

from ledgermq.protocol.methods import METHODS, Kind
from ledgermq_broker.service import BrokerService, ClusterPath
from tests.broker.cluster import Cluster, in_cluster
from tests.unit.test_methods import TYPED


@in_cluster("a:1")
async def test_each_method_has_a_handler_with_the_types_of_the_proto(cluster: Cluster) -> None:
    """No type checker compares them: the service is put together from the table of methods."""
    service = cluster.brokers["a:1"].service
    for method in METHODS:
        handler = getattr(service, method.attribute)
        signature = inspect.signature(handler)
        [request] = signature.parameters.values()
        typed = (method.kind, *(_plain(kind) for kind in (request.annotation, signature.return_annotation)))
        assert typed == TYPED[method.attribute], handler
        assert inspect.iscoroutinefunction(handler) == (method.kind is Kind.UNARY), handler


def _plain(annotation: str) -> str:
    return annotation.removeprefix("AsyncIterator[").removesuffix("]")


def test_a_method_without_a_handler_or_with_two_is_a_bug() -> None:
    cluster = object.__new__(ClusterPath)
    with pytest.raises(AssertionError, match="Produce is in 0 paths"):
        BrokerService(cluster)

    class All:
        def __getattr__(self, name: str) -> object:
            return name

    with pytest.raises(AssertionError, match="Produce is in 2 paths"):
        BrokerService(cluster, All(), All())
