"""Connections of the clouds' clients: by the proxy and the certificates that the vendors' libraries use (requests)."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

import certifi
from requests.utils import get_environ_proxies

from ledgermq_ledger.object_store.s3.obstore_wire import Connections
from ledgermq_ledger.object_store.s3.sending import Sender
from ledgermq_ledger.object_store.s3.wire import READERS_MAX, WRITERS_MAX


def connections_to(endpoint: str) -> Connections:
    ca_bundle = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE") or None
    return Connections(endpoint, get_environ_proxies(endpoint).get(urlsplit(endpoint).scheme), ca_bundle)


def sender_to(via: Connections) -> Sender:
    return Sender(via.proxy, via.ca_bundle or certifi.where(), READERS_MAX + WRITERS_MAX)
