"""Quotas without asyncio, and by command."""

from __future__ import annotations

import pytest

import ledgermq
from ledgermq.errors import InvalidRequest
from ledgermq.sync.admin.quotas import Quotas


def test_without_asyncio() -> None:
    with ledgermq.sync.connect("memory://quotas") as client:
        quotas = client.quotas
        assert isinstance(quotas, Quotas)
        made = quotas.set("user:shop", bytes_in=1000, requests=5, bytes_out=7, connections=3)
        assert (made.bytes_in, made.requests, made.bytes_out, made.connections) == (1000, 5, 7, 3)
        assert made.changed is not None
        assert [(quota.principal, quota.client_id) for quota in quotas.list()] == [("user:shop", "")]
        left = quotas.unset("user:shop", "", "bytes_in")
        assert left is not None
        assert (left.bytes_in, left.requests) == (None, 5)
        assert quotas.unset("user:shop") is None
        with pytest.raises(InvalidRequest, match="requests"):
            quotas.unset("user:shop", "", "request")
