"""Translate between the names of global transactions (xids of XA and PEP 249) and transactional ids.

The transactional id of an xid is `xid.FORMAT.GTRID.BQUAL`. A part of letters, digits, '-' and '_' that
does not begin with '_' is written unchanged, so that operators can read it. Any other part is written
as '_' and its UTF-8 in base64 (alphabet of URLs, no padding). The id has at most 190 characters.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import NamedTuple, Protocol

from ledgermq.client.transactions.decisions import check_transactional_id
from ledgermq.errors import InvalidRequest

PART_BYTES_MAX = 64
"""Bytes of gtrid, and of bqual, in UTF-8; the limit of XA."""
FORMAT_ID_MAX = 2**31 - 1
_PLAIN = re.compile(r"(?:[A-Za-z0-9-][A-Za-z0-9_-]*)?\Z")
_ID = re.compile(r"xid\.(0|[1-9][0-9]*)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]*)\Z")
_NAME = re.compile(r"([^:]+):([1-9][0-9]{0,9}):([1-9][0-9]{0,18})\Z")


class XidLike(Protocol):
    """The name of a global transaction: an `Xid`, or the one of a database driver (psycopg.Xid)."""

    @property
    def format_id(self) -> int | None: ...
    @property
    def gtrid(self) -> str: ...
    @property
    def bqual(self) -> str | None: ...


class Xid(NamedTuple):
    """The name of a global transaction; returned by `TwoPhase.xid` and `TwoPhase.tpc_recover`.

    Without a format id, `gtrid` is the transactional id itself.
    """

    format_id: int | None
    gtrid: str
    bqual: str | None

    @property
    def transactional_id(self) -> str:
        """Return the transactional id, which brokers and `ledgermq transaction` show. Raises InvalidRequest."""
        return transactional_id_of(self)


def xid_of(format_id: int, gtrid: str, bqual: str) -> Xid:
    """Raises InvalidRequest."""
    xid = Xid(format_id, gtrid, bqual)
    transactional_id_of(xid)
    return xid


def transactional_id_of(xid: XidLike | str) -> str:
    """Return the transactional id of an xid; a string is an id already. Raises InvalidRequest."""
    if isinstance(xid, str):
        return check_transactional_id(xid)
    if not hasattr(xid, "format_id"):
        raise InvalidRequest(f"a transaction is named by a text or an xid, not {xid!r}")
    if xid.format_id is None:
        return check_transactional_id(xid.gtrid)
    if type(xid.format_id) is not int or not 0 <= xid.format_id <= FORMAT_ID_MAX:
        raise InvalidRequest(f"the format id of an xid is a number from 0 to {FORMAT_ID_MAX}, not {xid.format_id!r}")
    if xid.gtrid == "":
        raise InvalidRequest("an xid needs a gtrid, the name of the global transaction; only bqual may be empty")
    return f"xid.{xid.format_id}.{_encoded('gtrid', xid.gtrid)}.{_encoded('bqual', xid.bqual)}"


def xid_from(transactional_id: str) -> Xid:
    """Return the xid of a transactional id. If the id was not made from an xid, it becomes the gtrid."""
    found = _ID.match(transactional_id)
    if found is not None:
        try:
            xid = Xid(int(found[1]), _decoded(found[2]), _decoded(found[3]))
            if transactional_id_of(xid) == transactional_id:
                return xid
        except (ValueError, InvalidRequest):
            pass
    return Xid(None, transactional_id, None)


def named(transaction: XidLike | str, epoch: int, number: int) -> tuple[str, int, int]:
    """Return id, epoch and number of a transaction. A `Transaction.name` contains all three; `epoch` and
    `number` are for an id or an xid. Raises InvalidRequest.
    """
    if not isinstance(transaction, str) or ":" not in transaction:
        return transactional_id_of(transaction), epoch, number
    found = _NAME.match(transaction)
    if found is None or epoch or number:
        raise InvalidRequest(
            f"{transaction!r} is not the name of a transaction, which is ID:EPOCH:NUMBER and needs nothing beside it:"
            " pass Transaction.name alone, or a transactional id with epoch and number"
        )
    return check_transactional_id(found[1]), int(found[2]), int(found[3])


def _encoded(what: str, part: object) -> str:
    if not isinstance(part, str):
        raise InvalidRequest(f"the {what} of an xid is a text, not {part!r}")
    try:
        data = part.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"the {what} of an xid is not valid text: {part!r}") from error
    if len(data) > PART_BYTES_MAX:
        raise InvalidRequest(
            f"the {what} of an xid has at most {PART_BYTES_MAX} bytes in UTF-8, {part[:80]!r} has {len(data)}"
        )
    return part if _PLAIN.match(part) else "_" + urlsafe_b64encode(data).rstrip(b"=").decode()


def _decoded(part: str) -> str:
    """Raises ValueError."""
    if not part.startswith("_"):
        return part
    return urlsafe_b64decode(part[1:] + "=" * (-len(part[1:]) % 4)).decode()
