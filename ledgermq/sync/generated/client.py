"""Calls that wait for the asynchronous ones, made by infra/sync_client.py (`make pages`): do not edit."""

from __future__ import annotations

from ledgermq.client.client import Client as AsyncClient
from ledgermq.sync.background import Background
from ledgermq.sync.generated.cluster import ClusterAdmin
from ledgermq.sync.generated.handling import Handling
from ledgermq.sync.generated.looking_up import LookingUp
from ledgermq.sync.generated.producers import MakingProducers
from ledgermq.sync.generated.topics import TopicNames


class ClientCalls(MakingProducers, Handling, LookingUp, ClusterAdmin, TopicNames):
    """The calls of `ledgermq.sync.Client` that only wait for the asynchronous ones."""

    _inner: AsyncClient

    def __init__(self, background: Background, inner: AsyncClient) -> None:
        self._background = background
        self._inner = inner

    @property
    def closed(self) -> bool:
        return self._inner.closed
