"""Name the objects of cuts (`ledgermq_ledger.keys` names all others).

cuts/<id:020d>                                          what a cut names; `<id>` is the offset of its first record
held/_<topic id>/partition=<p>/<name as below parquet/>  a Parquet file that only cuts need
"""

from __future__ import annotations

import re

from ledgermq_ledger import keys

CUTS = "cuts/"
HELD = "held/"
_CUT = re.compile(r"cuts/([0-9]{20})\Z")
_HELD = re.compile(r"held/_(\d+)/partition=(\d+)/\d{20}-\d{20}-(\d+)-\d+\.parquet\Z")


def cut(cut_id: int) -> str:
    return f"{CUTS}{cut_id:020d}"


def parse_cut(key: str) -> int | None:
    """Return the id of the cut whose object has this key; None for other keys."""
    found = _CUT.match(key)
    return int(found[1]) if found else None


def held(key: str) -> str:
    """Return the key of a Parquet file of a log once it is handed over."""
    name = keys.parse_parquet(key)
    if name is None:
        raise AssertionError(f"{key} is no Parquet file of a log")
    return f"{HELD}_{name.topic_id}/partition={name.partition}/{key.rsplit('/', 1)[1]}"


def is_held(key: str) -> bool:
    """Return True if a LedgerMQ process put an object of this name below `held/`."""
    found = _HELD.match(key)
    return found is not None and found[1] == found[3]
