"""Locate a topic's archive: `<archive.url>/archive/topic=<t>/partition=<p>/<file>`; without a URL
in the cluster's own root.

An archived file has the same name below `archive/` as it had below `parquet/`. Even if the URL is
an alias of the root, the part `archive/` makes the copy a separate object, so a file is never taken
for its own copy.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from ledger.object_store.s3_location import parse_s3_url
from ledgermq.errors import InvalidConfig

_NEEDED = "use the URL of a store, such as s3://bucket/prefix, hdfs://host:port/folder or file:///folder"
_LOCAL = ("file", "memory")


def check_archive_url(text: str) -> str:
    """Check the form of an archive URL. Raises ValueError."""
    if not text:
        return text
    try:
        parts = urlsplit(text)
        if parts.scheme == "s3":
            parse_s3_url(text)
    except InvalidConfig as error:
        raise ValueError(error.message) from error
    if (
        parts.scheme not in ("s3", "hdfs", *_LOCAL)
        or "@" in parts.netloc
        or (parts.scheme == "file" and parts.path in ("", "/"))
    ):
        raise ValueError(_NEEDED)
    if parts.scheme != "s3" and (parts.query or parts.fragment):
        raise ValueError(f"{_NEEDED}, without '?' and '#'")
    return text


def check_archive_beside(root_url: str, archive_url: str) -> None:
    """Check that a cluster of this root may have this archive. Raises InvalidConfig."""
    if not archive_url:
        return
    root, archive = urlsplit(root_url), urlsplit(archive_url)
    if archive.scheme in _LOCAL and archive.scheme != root.scheme:
        raise InvalidConfig(
            f"topic setting archive.url: {archive_url!r} names another place on each machine, but the cluster's root is"
            f" in {root.scheme}; use a store that all machines share"
        )
    inner, outer = f"{archive.path.rstrip('/')}/", f"{root.path.rstrip('/')}/"
    if (root.scheme, root.netloc) == (archive.scheme, archive.netloc) and inner.startswith(outer):
        raise InvalidConfig(
            f"topic setting archive.url: {archive_url!r} is inside the cluster's root; leave the setting empty for an"
            " archive there"
        )
