"""Describe transactional ids for operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.transactions.state.records import IdValue
from ledgermq_broker.transactions.state.types import Transaction
from ledgermq_broker.transactions.state.wire import part_to_proto, shown_transaction, state_to_proto


def transaction_info(transaction: Transaction, known: IdValue, troubles: Mapping[int, str]) -> pb.TransactionInfo:
    """`troubles`: bundle -> why it does not complete the transaction."""
    return pb.TransactionInfo(
        transaction=shown_transaction(transaction),
        kind=cast(pb.TransactionKind, int(known.kind)),
        state=state_to_proto(known.state),
        complete=known.complete,
        changed_ms=known.changed_ms,
        timeout_ms=known.timeout_ms,
        parts=[part_to_proto(part) for part in known.parts],
        missing=known.missing,
        trouble="; ".join(f"bundle {bundle}: {text}" for bundle, text in sorted(troubles.items())),
        check_group=known.check_group,
        checks=known.checks,
    )
