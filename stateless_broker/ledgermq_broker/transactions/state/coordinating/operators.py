"""Decide what operators ask for, and describe transactional ids to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from ledgermq.errors import InvalidRequest
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.transactions.state.checks import about_copy, check_transaction, check_transactional_id, describe
from ledgermq_broker.transactions.state.coordinating.bundles import Bundles
from ledgermq_broker.transactions.state.coordinating.served_ids import ServedIds
from ledgermq_broker.transactions.state.records import IdValue
from ledgermq_broker.transactions.state.types import Kind, State, Transaction
from ledgermq_broker.transactions.state.wire import part_to_proto, shown_transaction, state_to_proto
from ledgermq_ledger.log.log_record import Decision


class Operators:
    def __init__(self, ids: ServedIds, bundles: Bundles) -> None:
        self._ids = ids
        self._bundles = bundles

    def resolve(self, transactional_id: str, commit: bool, now_ms: int) -> Decision[pb.TransactionInfo]:
        """Record an operator's decision, in the place of a transaction manager or a producer.

        Only a prepared transaction can be committed, because only then its counts are stored. Raises
        InvalidRequest, TransactionUnknown, Unavailable.
        """
        known = self._ids.existing(transactional_id)
        state = State.COMMITTED_BY_OPERATOR if commit else State.ABORTED_BY_OPERATOR
        if known.state is state and not self._ids.is_asked(transactional_id, known):
            return Decision([], self.describe(transactional_id))
        transaction = self._ids.named(transactional_id, known)
        parts = known.parts
        if known.state is not State.PREPARED:
            if known.kind is not Kind.ORDINARY and known.number:
                advice = f"; {about_copy(known.check_group)}" if known.state is State.UNRESOLVED else ""
                raise InvalidRequest(
                    f"{describe(transaction)} is decided already: it is {known.state.name}; nothing was changed{advice}"
                )
            if commit:
                raise InvalidRequest(
                    f"no transaction of {transactional_id!r} is prepared, and only what is prepared can be committed "
                    "by an operator; abort it"
                )
            if not known.complete:
                raise self._ids.not_complete(transaction)
            transaction, parts = check_transaction(transaction._replace(number=known.number + 1)), ()
        decision = self._ids.decide(transaction, known, state, parts, now_ms, None)
        return Decision(decision.records, self.describe(transactional_id))

    def forget(self, transactional_id: str) -> Decision[None]:
        """Forget an id that is used once, or the operator's decision about an ordinary one.

        Raises InvalidRequest; Unavailable while the transaction is not complete. An unknown id counts as
        forgotten.
        """
        known = self._ids.known.get(check_transactional_id(transactional_id))
        if known is None:
            return Decision([], None)
        if not known.state.is_final:
            raise InvalidRequest(
                f"transaction {transactional_id!r} is {known.state.name}; commit it or roll it back first"
            )
        if not known.complete:
            raise self._ids.not_complete(self._ids.named(transactional_id, known))
        if known.kind is not Kind.ORDINARY:
            return self._ids.decided(transactional_id, None, None)
        if known.state is not State.ABORTED_BY_OPERATOR:
            raise InvalidRequest(
                f"transactional id {transactional_id!r} is ORDINARY and has no operator's decision to forget; it "
                f"expires after {self._ids.limits.expiry_ms} ms without use"
            )
        return self._ids.decided(transactional_id, replace(known, state=State.ABORTED), None)

    def give_up(self, transactional_id: str, bundle: int, now_ms: int) -> Decision[pb.TransactionInfo]:
        """Record that the transaction's part in a bundle is lost. It then counts as complete there (X20).

        The bundle finds out by `confirm`. Raises InvalidRequest, TransactionUnknown.
        """
        known = self._ids.existing(transactional_id)
        if bundle not in known.missing:
            missing = ", ".join(map(str, known.missing)) or "none"
            raise InvalidRequest(
                f"transaction {known.number} of {transactional_id!r} is not incomplete in bundle {bundle}; it is "
                f"incomplete in: {missing}"
            )
        decision = self._bundles.complete_in(transactional_id, known, bundle, now_ms, None)
        return Decision(decision.records, self.describe(transactional_id))

    def infos(self, open_only: bool) -> list[pb.TransactionInfo]:
        """Return the ids, sorted, without their parts: those of a few thousand would exceed an answer.

        `open_only`: those with a transaction that is prepared or incomplete, or undecided after a bundle
        has asked about it.
        """
        found = [
            self.describe(name)
            for name, known in sorted(self._ids.known.items())
            if not open_only or not known.complete or self._ids.is_asked(name, known)
        ]
        for info in found:
            info.ClearField("parts")
        return found

    def describe(self, transactional_id: str) -> pb.TransactionInfo:
        """Describe the newest transaction of an id: an undecided one only if a bundle has asked about it.

        Raises InvalidRequest, TransactionUnknown.
        """
        known = self._ids.existing(transactional_id)
        if self._ids.is_asked(transactional_id, known):
            undecided, asked_ms, _ = self._ids.asked[transactional_id]
            new = IdValue(
                known.producer_id,
                undecided.epoch,
                known.kind,
                known.timeout_ms,
                asked_ms,
                undecided.number,
                complete=False,
                check_group=known.check_group,
            )
            return _info(undecided, new, {})
        return _info(self._ids.named(transactional_id, known), known, self._ids.troubles.get(transactional_id, {}))


def _info(transaction: Transaction, known: IdValue, troubles: Mapping[int, str]) -> pb.TransactionInfo:
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
