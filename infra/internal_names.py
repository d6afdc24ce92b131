"""Names of public classes that are no part of the public API: docs/api.md does not show them, and the client without
asyncio does not have them.
"""

from __future__ import annotations

INTERNAL = {
    "Client.open_sessions",
    "Client.resumed_producer",
    "Producer.add_row",
    "Producer.due_us",
    "Producer.has_ended",
    "Producer.raise_unseen_calls",
    "Producer.refused",
    "Producer.send_encoded",
    "Producer.settle",
    "Producer.start_over",
    "Producer.wait_for_room",
    "Producer.warn_of_lost_records",
    "Consumer.expire",
    "GroupConsumer.drop_rewound",
    "GroupConsumer.expire",
    "GroupConsumer.inner",
    "Queue.refuse",
    "Queue.say",
    "Retry.check_handler",
    "Retry.is_last",
    "Retry.wait_s",
    "Retry.with_callbacks",
    "Transaction.add_row",
    "Transaction.check_open",
    "Transaction.closed",
    "Transaction.condemn",
    "Transaction.due_us",
    "Transaction.note_failure",
    "Transaction.refused",
    "Transaction.release",
    "Transaction.resolved",
    "Transaction.settings",
    "Transaction.stage_entries",
    "Transaction.wait_for_room",
    "TwoPhase.add_row",
    "TwoPhase.check_open",
    "TwoPhase.due_us",
    "TwoPhase.refused",
    "TwoPhase.settings",
    "TwoPhase.wait_for_room",
}
"""Used by the command line, the Spark sink and within the package; they may change in any release."""
