"""All surfaces by name."""

from __future__ import annotations

from tests.fuzz import (
    access_surfaces,
    command_surfaces,
    filter_surfaces,
    gateway_surfaces,
    group_surfaces,
    input_surfaces,
    kafka_batch_surfaces,
    kafka_surfaces,
    lake_surfaces,
    ledger_surfaces,
    parquet_surfaces,
    rights_surfaces,
    root_surfaces,
    round_trip_surfaces,
    schema_surfaces,
    service_surfaces,
    share_surfaces,
    timer_call_surfaces,
    timer_surfaces,
    tls_surfaces,
    token_surfaces,
    transaction_call_surfaces,
    transaction_surfaces,
    typed_surfaces,
    wire_surfaces,
)
from tests.fuzz.surface import Surface


def all_surfaces() -> dict[str, Surface]:
    modules = (
        access_surfaces,
        token_surfaces,
        tls_surfaces,
        wire_surfaces,
        ledger_surfaces,
        kafka_batch_surfaces,
        kafka_surfaces,
        lake_surfaces,
        parquet_surfaces,
        service_surfaces,
        rights_surfaces,
        transaction_call_surfaces,
        transaction_surfaces,
        timer_call_surfaces,
        timer_surfaces,
        share_surfaces,
        gateway_surfaces,
        input_surfaces,
        command_surfaces,
        filter_surfaces,
        group_surfaces,
        root_surfaces,
        round_trip_surfaces,
        schema_surfaces,
        typed_surfaces,
    )
    return {surface.name: surface for module in modules for surface in module.surfaces()}
