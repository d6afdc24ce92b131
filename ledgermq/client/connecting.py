"""Connect: the composition root of the SDK. It turns a target into a connector (gRPC, or an embedded broker found
through the entry point group "ledgermq.embedded"), and into a client.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Unpack

from ledgermq.client.client import Client
from ledgermq.client.connection.credentials import credential_of
from ledgermq.client.connection.grpc_connection import GrpcConnector, refuse_after_fork
from ledgermq.client.connection.home import refuse_green_threads
from ledgermq.client.connection.target import Embedding, is_root_url, parse_addresses
from ledgermq.client.setting_types import ClientOptions
from ledgermq.client.settings.tls import Tls, chosen_tls
from ledgermq.client.settings.values import ClientSettings, settings_from
from ledgermq.errors import InvalidConfig
from ledgermq.sources import Sources
from ledgermq.telemetry.switch import chosen_switch

DECODING_THREADS = 2
"""Threads of one client, shared by all its consumers; started when the first batch is decoded
ahead.
"""


def connect(target: str, *, sources: Sources | None = None, **settings: Unpack[ClientOptions]) -> Client:
    """Connect to a cluster: `async with ledgermq.connect("localhost:9650") as client`, or
    `client = ledgermq.connect("localhost:9650")` and at the end `await client.close()`.

    `target`: "host:port[,host:port]" of any brokers of a cluster, or a root URL (file:///…, s3://…,
    az://…, gs://…, hdfs://…, memory://) for a broker inside this process, which needs the extra "broker". Settings:
    the fields of `ClientSettings`. No request is sent before the first call. With a root URL `async with`
    and `await` start the broker, otherwise the first call does. Raises InvalidConfig; the start of a
    broker may fail, too.
    """
    refuse_after_fork()
    refuse_green_threads()
    parsed = settings_from(ClientSettings, settings)
    parsed = replace(
        parsed, tracing=chosen_switch("tracing", parsed.tracing), metrics=chosen_switch("metrics", parsed.metrics)
    )
    threads = ThreadPoolExecutor(DECODING_THREADS, "ledgermq decoding")  # none starts before it is needed
    if is_root_url(target):
        if parsed.tls is True or isinstance(parsed.tls, Tls):
            raise InvalidConfig(
                f"tls is for connections to brokers, and {target} starts one in this process: leave tls out"
            )
        embedding = Embedding(target, must_exist=parsed.must_exist)
        return Client(embedding, [target], parsed, sources, threads, embedding, owns_threads=True)
    connector = GrpcConnector(
        request_timeout_s=parsed.attempt_timeout_s,
        tls=chosen_tls(parsed.tls),
        credential=credential_of(parsed.token, parsed.token_file),
        client_id=parsed.client_id,
        rack=parsed.rack,
    )
    return Client(connector, parse_addresses(target), parsed, sources, threads, owns_threads=True)
