"""Names of public classes that the client without asyncio does not have. docs/api.md shows those only that are part
of the public API.
"""

from __future__ import annotations

INTERNAL = {
    "BatchDelivery.join",
    "Deliveries.add",
    "RetryCopies.add",
    "Tls.read",
    "Tls.stamp",
    "Producer.tracing",
    "Transaction.tracing",
    "TwoPhase.tracing",
    "Client.open_sessions",
    "Client.resumed_producer",
    "DeadLetterAdmin.check_known",
    "DeadLetterAdmin.settle",
    "Producer.add_row",
    "Producer.due_us",
    "Producer.has_ended",
    "Producer.raise_unseen_calls",
    "Producer.refused",
    "Producer.send_encoded",
    "Producer.settle",
    "Producer.start_over",
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
    "Producer.check_conditional",
    "Transaction.add_row",
    "Transaction.check_conditional",
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
    "TwoPhase.check_conditional",
    "TwoPhase.check_open",
    "TwoPhase.due_us",
    "TwoPhase.refused",
    "TwoPhase.settings",
    "TwoPhase.wait_for_room",
}
"""Used by the command line, the Spark sink and within the package; they may change in any release."""

ONLY_ASYNC = {"Producer.wait_for_room"}
"""Public, and not needed without asyncio: `send` waits itself there."""
