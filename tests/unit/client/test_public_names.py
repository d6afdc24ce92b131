"""`ledgermq.__all__`: what public calls take and give, and nothing that no program needs."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys

import pytest

import ledgermq

NOT_MADE_BY_CALLS = {"connect", "errors", "sync", "__version__", "LedgerMQError", "to_pandas", "to_polars"}


def test_every_public_type_is_in_a_signature_of_another_one() -> None:
    signatures = ""
    for name in ledgermq.__all__:
        public = getattr(ledgermq, name)
        if not inspect.isclass(public):
            continue
        signatures += " ".join(str(annotation) for annotation in getattr(public, "__annotations__", {}).values())
        for member_name, member in inspect.getmembers(public):
            if not member_name.startswith("_"):
                signatures += str(
                    getattr(member.fget if isinstance(member, property) else member, "__annotations__", "")
                )
    unused = [
        name for name in ledgermq.__all__ if name not in NOT_MADE_BY_CALLS and not re.search(rf"\b{name}\b", signatures)
    ]
    # What `connect`, awaiting, `client.access`, `client.groups`, `client.queues`, `client.quotas`, `client.schemas`,
    # `client.tables`, `client.topics`, `client.dead_letters`, `client.unresolved` and `client.transactions` give, and
    # calling the last one; what programs make for a reset, in a handler, and as a setting, what checks of half messages
    # and filter functions get, and the kinds of results by which they notice that a record was spilled.
    assert unused == [
        "Access",
        "BatchResult",
        "CheckedMessage",
        "Cuts",
        "DeadLetterAdmin",
        "FilterMessage",
        "GroupAdmin",
        "Like",
        "OffsetStore",
        "Outgoing",
        "QueueAdmin",
        "Quotas",
        "Retry",
        "Schemas",
        "Shift",
        "Spill",
        "Spilled",
        "SpilledBatch",
        "TableAdmin",
        "Tls",
        "TopicAdmin",
        "TransactionClient",
        "Transactions",
        "UnresolvedAdmin",
    ]


def test_settings_are_keyword_arguments_and_sync_needs_no_import_of_its_own() -> None:
    assert not [name for name in ledgermq.__all__ if name.endswith("Settings")]
    program = "import ledgermq; print(ledgermq.sync.connect.__module__, ledgermq.errors.UnknownTopic.code)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert ended.stdout.split() == ["ledgermq.sync.client", "UNKNOWN_TOPIC"]


def test_an_error_that_is_looked_for_in_the_wrong_place_is_found() -> None:
    with pytest.raises(AttributeError, match=r"'TransactionAborted'; it is ledgermq\.errors\.TransactionAborted$"):
        _ = ledgermq.TransactionAborted
    with pytest.raises(AttributeError, match=r"no attribute 'Nonsense'$"):
        _ = ledgermq.Nonsense
