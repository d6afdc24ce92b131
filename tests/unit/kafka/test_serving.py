"""What ApiVersions promises has a handler."""

from __future__ import annotations

from typing import Any

from ledgermq.sources import Sources
from ledgermq_broker.kafka.handlers.serving import handlers
from ledgermq_broker.kafka.handlers.shares.fetching import ShareHandler
from ledgermq_broker.kafka.table import TABLE
from ledgermq_broker.kafka.wire.messages import API_VERSIONS, FETCH, PRODUCE, SASL_AUTHENTICATE, SASL_HANDSHAKE


def test_each_api_of_the_table_has_a_handler() -> None:
    unused: Any = None
    sources = Sources()
    of_connections = {API_VERSIONS, FETCH, PRODUCE, SASL_AUTHENTICATE, SASL_HANDSHAKE}
    served = handlers(unused, sources, unused, ShareHandler(unused, unused, unused, unused, sources), unused).keys()
    assert served | of_connections == {served.api for served in TABLE}


def test_versions_of_the_table_are_described() -> None:
    for served in TABLE:
        assert served.api.versions[0] <= served.first <= served.last <= served.api.versions[1], served.api.name
