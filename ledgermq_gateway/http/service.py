"""What all calls of one gateway share: settings, sources, bounds, and whether it stops."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from ledgermq.runtime.ports.turns import Turns
from ledgermq.sources import Sources
from ledgermq_gateway.cluster.origins import Proxies
from ledgermq_gateway.http.limits import KeyRates, Memory, Streams
from ledgermq_gateway.settings import GatewaySettings, words
from ledgermq_gateway.spans import RequestSpans


@dataclass(frozen=True, slots=True)
class Service:
    """`stopping`: set when the gateway begins to stop: waits end then, and streams soon after."""

    settings: GatewaySettings
    sources: Sources
    turns: Turns
    memory: Memory
    streams: Streams
    key_rates: KeyRates
    transaction_rates: KeyRates
    spans: RequestSpans
    proxies: Proxies
    stopping: asyncio.Event = field(default_factory=asyncio.Event)


def make_service(settings: GatewaySettings, sources: Sources) -> Service:
    proxies = Proxies(words(settings.trusted_proxies))
    return Service(
        settings,
        sources,
        Turns(settings.calls_max),
        Memory(settings.memory_bytes),
        Streams(settings.streams_max, settings.streams_per_principal_max),
        KeyRates(settings.keys_per_second_max, "records with an idempotency key", "TOO_MANY_KEYS"),
        KeyRates(settings.transactions_per_second_max, "transactions", "TOO_MANY_TRANSACTIONS"),
        RequestSpans(settings.tracing == "on", proxies, sources.now_us),
        proxies,
    )
