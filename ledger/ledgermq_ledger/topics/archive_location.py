"""Locate a topic's archive: `<archive.url>/archive/topic=<t>/partition=<p>/<file>`; without a URL
in the cluster's own root.

An archived file has the same name below `archive/` as it had below `parquet/`. Even if the URL is
an alias of the root, the part `archive/` makes the copy a separate object, so a file is never taken
for its own copy.

Brokers and compactors write there with their own credentials, so a topic's owner does not choose where
these credentials go: to the root's own endpoint, or below a URL that an operator lists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from urllib.parse import unquote, urlsplit

from ledgermq.errors import InvalidConfig
from ledgermq_ledger.object_store.clouds.location import CLOUDS, parse_cloud_url
from ledgermq_ledger.object_store.s3.location import parse_s3_url

_NEEDED = (
    "use the URL of a store, such as s3://bucket/prefix, az://container/prefix, gs://bucket/prefix,"
    " hdfs://host:port/folder or file:///folder"
)
_LOCAL = ("file", "memory")


def _s3_place(url: str) -> object:
    return parse_s3_url(url).endpoint


def _cloud_place(url: str) -> object:
    location = parse_cloud_url(url)
    return location.account, location.endpoint


_PLACES: dict[str, Callable[[str], object]] = {"s3": _s3_place, "az": _cloud_place, "gs": _cloud_place}
"""Where credentials are sent to, by the scheme of a URL."""


def check_archive_url(text: str) -> str:
    """Check the form of an archive URL. Raises ValueError."""
    if not text:
        return text
    try:
        parts = urlsplit(text)
        if parts.scheme == "s3":
            parse_s3_url(text)
        if parts.scheme in CLOUDS:
            parse_cloud_url(text)
    except InvalidConfig as error:
        raise ValueError(error.message) from error
    if (
        parts.scheme not in (*_PLACES, "hdfs", *_LOCAL)
        or "@" in parts.netloc
        or (parts.scheme == "file" and parts.path in ("", "/"))
    ):
        raise ValueError(_NEEDED)
    if parts.scheme not in _PLACES and (parts.query or parts.fragment):
        raise ValueError(f"{_NEEDED}, without '?' and '#'")
    if {".", ".."} & set(unquote(parts.path).split("/")):
        raise ValueError(f"{_NEEDED}, without the parts '.' and '..'")
    return text


def archive_urls_of(text: str) -> tuple[str, ...]:
    """Return the URLs of a list separated by commas, each checked. Raises ValueError."""
    return tuple(check_archive_url(url) for part in text.split(",") if (url := part.strip()))


def check_archive_beside(root_url: str, archive_url: str, listed: Sequence[str] = ()) -> None:
    """Check that a cluster of this root may have this archive. `listed`: the URLs below which an operator allows
    archives. Raises InvalidConfig.
    """
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
    if not (_is_at_endpoint_of(root_url, archive_url) or any(_is_below(url, archive_url) for url in listed)):
        raise InvalidConfig(
            f"topic setting archive.url: brokers send their credentials to {archive_url!r}, which is at another"
            " endpoint than the cluster's root; an operator may allow it by the broker's setting archive_urls"
        )


def _is_at_endpoint_of(root_url: str, archive_url: str) -> bool:
    """Return whether credentials go no further than for the root itself. A folder has no endpoint: a caller that may
    name one writes as the broker's user.
    """
    scheme = urlsplit(archive_url).scheme
    if scheme != urlsplit(root_url).scheme or scheme == "file":
        return False
    if scheme in _PLACES:
        return _PLACES[scheme](root_url) == _PLACES[scheme](archive_url)
    return scheme == "memory" or urlsplit(root_url).netloc == urlsplit(archive_url).netloc


def _is_below(listed: str, archive_url: str) -> bool:
    """Return whether an archive is at a listed URL, or below it."""
    outer, inner = urlsplit(listed), urlsplit(archive_url)
    if (outer.scheme, outer.netloc) != (inner.scheme, inner.netloc):
        return False
    if outer.scheme in _PLACES and _PLACES[outer.scheme](listed) != _PLACES[outer.scheme](archive_url):
        return False
    return f"{inner.path.rstrip('/')}/".startswith(f"{outer.path.rstrip('/')}/")
