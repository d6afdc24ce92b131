"""The registry of cuts: records of `__metadata` with the key `cut/<name>`, and how each follows the one before.

    (none, ABANDONED or DROPPED) ── begin ──> PENDING ── fix ──> TAKEN ── drop ──> DROPPED ── pins gone ──> (none)
                                                 └── abandon ──> ABANDONED ──────────────────── pins gone ──> (none)

The offset of the record that begins a cut is its id. An id whose record is not PENDING or TAKEN stays over, so a
process with an old catalog never takes a cut for over that is not (design I7, I12). Pure.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from google.protobuf.message import DecodeError

from ledgermq.errors import CutExists, DataDamaged, InvalidRequest, Unavailable, UnknownCut
from ledgermq.protocol.naming.names import is_new_name
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.topics.catalog import Catalog

PREFIX = b"cut/"
NAME_CHARS_MAX = 100
RETRY_MS = 500
LIVE = (fmt.PENDING, fmt.TAKEN)


def key_of(name: str) -> bytes:
    return PREFIX + name.encode()


def encode(record: fmt.CutRecord) -> bytes:
    return record.SerializeToString(deterministic=True)


def cuts_in(catalog: Catalog) -> dict[str, fmt.CutRecord]:
    """Return the cuts that a catalog has, by name; raises DataDamaged, naming the record."""
    found = {}
    for key, (offset, value) in sorted(catalog.others.items()):
        if key.startswith(PREFIX):
            record = _decode(offset, key, value)
            found[record.name] = record
    return found


def cut_in(catalog: Catalog, name: str) -> fmt.CutRecord:
    """Return a cut of any state. Raises UnknownCut, naming it."""
    held = catalog.others.get(key_of(name))
    if held is None:
        raise UnknownCut(f"cut {name[:NAME_CHARS_MAX]!r} does not exist: `ledgermq cut list` shows those that do")
    return _decode(held[0], key_of(name), held[1])


def taken_in(catalog: Catalog, name: str) -> fmt.CutRecord:
    """Return a cut that can be read. Raises UnknownCut, Unavailable while it is pending."""
    record = cut_in(catalog, name)
    if record.state == fmt.PENDING:
        raise Unavailable(f"cut {name!r} is being taken at the moment; retry", retry_after_ms=RETRY_MS)
    if record.state != fmt.TAKEN:
        why = f"was not taken: {record.reason}" if record.state == fmt.ABANDONED else "was dropped"
        raise UnknownCut(f"cut {name!r} {why}; take another one")
    return record


def _decode(offset: int, key: bytes, value: bytes) -> fmt.CutRecord:
    try:
        record = fmt.CutRecord.FromString(value)
    except DecodeError as error:
        raise DataDamaged(f"record {offset} of {keys.METADATA_TOPIC} says nothing readable of {key!r}") from error
    if key_of(record.name) != key:
        raise DataDamaged(f"record {offset} of {keys.METADATA_TOPIC} has the key {key!r}, but is of {record.name!r}")
    record.id = record.id or offset
    return record


def is_taken(catalog: Catalog, record: fmt.CutRecord) -> bool:
    """Return whether a cut that was found earlier can still be read, and was not dropped since."""
    found = cuts_in(catalog).get(record.name)
    return found is not None and found.id == record.id and found.state == fmt.TAKEN


def cut_id_of(text: str) -> int | None:
    """Return the id that a text is; None if it is none."""
    return int(text) if re.fullmatch(r"\d{1,20}", text) else None


def moment_ms_of(text: str) -> float | None:
    """Return the time that stands for the newest cut at or before it, ISO 8601, UTC unless it names a zone; None if it
    is none.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000


def pending_in(catalog: Catalog) -> list[fmt.CutRecord]:
    return [record for record in cuts_in(catalog).values() if record.state == fmt.PENDING]


def refuse_pending(catalog: Catalog) -> None:
    """Raise Unavailable while a cut is pending: then no partition begins to move, and no bundle is added."""
    for record in pending_in(catalog)[:1]:
        raise Unavailable(
            f"cut {record.name!r} is being taken at the moment, which takes seconds; retry", retry_after_ms=RETRY_MS
        )


def over_in(catalog: Catalog, cut_id: int) -> bool:
    """Return True if a cut is over, so that its pins and its object may go. An unknown id above the catalog's end may
    be of a cut that it does not know yet: False.
    """
    return cut_id < catalog.offset and not any(
        record.id == cut_id and record.state in LIVE for record in cuts_in(catalog).values()
    )


# Steps


def check_name(name: str) -> None:
    if not is_new_name(name) or len(name) > NAME_CHARS_MAX:
        raise InvalidRequest(
            f"{name[:NAME_CHARS_MAX]!r} is no name of a cut: use at most {NAME_CHARS_MAX} of letters, digits, . _ -"
        )


def begun(
    catalog: Catalog, name: str, until_ms: int, nonce: bytes, now_ms: int, *, automatic: bool = False
) -> fmt.CutRecord:
    """Return the record that begins a cut, or the one that a call with this nonce began, if it still counts.

    Raises InvalidRequest, CutExists, and Unavailable while another one is pending or a partition moves.
    """
    check_name(name)
    held = cuts_in(catalog).get(name)
    if held is not None and held.state in LIVE:
        if nonce and held.nonce == nonce:
            return held
        raise CutExists(f"cut {name!r} exists: choose another name, or drop it first (`ledgermq cut drop {name}`)")
    refuse_pending(catalog)
    for topic, partition, _ in catalog.moving():
        raise Unavailable(
            f"{topic.name}/{partition} moves between bundles at the moment, and a cut waits for that; retry",
            retry_after_ms=5000,
        )
    return fmt.CutRecord(
        name=name, state=fmt.PENDING, begun_ms=now_ms, until_ms=until_ms, nonce=nonce, automatic=automatic
    )


def _after(record: fmt.CutRecord, state: fmt.CutState) -> fmt.CutRecord:
    after = fmt.CutRecord()
    after.CopyFrom(record)
    after.state = state
    return after


def taken(catalog: Catalog, name: str, cut_id: int, now_ms: int) -> fmt.CutRecord:
    """Return the record that says TAKEN, which follows only PENDING of the same attempt (I7). Raises Unavailable."""
    record = cuts_in(catalog).get(name)
    if record is None or record.id != cut_id or record.state != fmt.PENDING:
        raise Unavailable(f"another controller has ended this attempt of cut {name!r}; take it again")
    after = _after(record, fmt.TAKEN)
    after.taken_ms = now_ms
    return after


def abandoned(catalog: Catalog, cut_id: int, reason: str) -> fmt.CutRecord | None:
    """Return the record that ends an attempt; None if it is not pending."""
    for record in pending_in(catalog):
        if record.id == cut_id:
            after = _after(record, fmt.ABANDONED)
            after.reason = reason
            return after
    return None


def dropped(catalog: Catalog, name: str) -> fmt.CutRecord | None:
    """Return the record that drops a cut; None if it is over already. Raises UnknownCut."""
    record = cut_in(catalog, name)
    if record.state not in LIVE:
        return None
    if record.holders:
        raise CutExists(
            f"cut {name!r} is read by {len(record.holders)} branches: drop them first (`ledgermq branch list`)"
        )
    return _after(record, fmt.DROPPED)


def kept(catalog: Catalog, name: str, until_ms: int) -> fmt.CutRecord:
    """Return the record with another end. Raises UnknownCut, Unavailable."""
    after = _after(taken_in(catalog, name), fmt.TAKEN)
    after.until_ms = until_ms
    return after


def holding(catalog: Catalog, topic_id: int) -> list[fmt.CutRecord]:
    """Return the cuts that may have a topic, if it is not removed yet or was just now: the pending ones, and those
    whose newest record is above the topic's first one. A cut that has the topic was taken after that, and its place in
    bundle 0 is no record's offset, so a cut from before the topic is among them if it was kept for another time since.
    """
    live = [record for record in cuts_in(catalog).values() if record.state in LIVE]
    return [each for each in live if each.state == fmt.PENDING or catalog.others[key_of(each.name)][0] > topic_id]


def dropped_with(catalog: Catalog, topic_id: int) -> list[fmt.CutRecord]:
    """Return the records that drop all cuts that may have a topic. Raises CutExists while a branch reads one."""
    after = (dropped(catalog, record.name) for record in holding(catalog, topic_id))
    return [record for record in after if record is not None]


def due(catalog: Catalog, now_ms: int) -> list[fmt.CutRecord]:
    """Return the cuts whose time is over. `now_ms`: the earlier of two clocks (decision 30)."""
    return [
        record
        for record in cuts_in(catalog).values()
        if record.state == fmt.TAKEN and 0 < record.until_ms <= now_ms and not record.holders
    ]
