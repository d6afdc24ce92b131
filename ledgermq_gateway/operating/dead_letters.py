"""Dead letters of groups: list them in pages, look at one, redrive or drop them. The rules are those of
`client.dead_letters`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from ledgermq.client.groups.retry_topics import dead_letter_topic
from ledgermq.client.messages.message_id import MessageId
from ledgermq.client.operating.dead_letters import DeadLetter, DeadLetterFilter, DeadLetterList, How, LetterPlace
from ledgermq.errors import UnknownTopic
from ledgermq_gateway.http.call import Answer, Call
from ledgermq_gateway.http.problems import Problem
from ledgermq_gateway.records.bodies import decode
from ledgermq_gateway.records.cursors import cursor_of, offsets_at
from ledgermq_gateway.records.forms import FORMS, record_json
from ledgermq_gateway.records.reading import READ_BYTES, RecordOut
from ledgermq_gateway.resources.parameters import bytes_of, choice, flag, position_of, text_bytes, whole

LISTED, LISTED_MAX = 100, 1_000
PlaceText = Annotated[str, Meta(pattern="^[0-9]{1,9}:[0-9]{1,18}$")]
Time = Annotated[datetime, Meta(tz=True)]


class LetterGroups(Struct, kw_only=True):
    """Groups that have a topic of dead letters."""

    groups: list[str]


class LetterSummary(Struct, kw_only=True):
    """`place`: PARTITION:OFFSET in the dead-letter topic. `origin`: the id of the message that failed. `attempts`:
    calls that failed; `error`: text of the last failure. `first_failure_ms`: since the epoch.
    """

    place: str
    origin: str
    attempts: int
    first_failure_ms: int
    error: str
    state: Literal["waits", "redriven", "dropped"]


class Letter(LetterSummary, kw_only=True):
    """A dead letter with its record."""

    record: RecordOut


class Letters(Struct, kw_only=True):
    """`next`: the cursor to go on with. `left`: how many more were asked for and come on later pages."""

    letters: list[Letter]
    left: int
    next: str | None


class LettersIn(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which letters are meant: these `places`, or with `all` every one. Both are narrowed by the other fields. `since`,
    `before`: when they were moved to the topic. `error`: a part of the last error. `topic`: of the original message.
    `limit`: most letters. `dry_run`: only answer which letters are meant.
    """

    places: Annotated[list[PlaceText], Meta(max_length=LISTED_MAX)] = []
    all: bool = False
    since: Time | None = None
    before: Time | None = None
    error: str = ""
    key: str | None = None
    key_base64: str | None = None
    topic: str = ""
    limit: Annotated[int, Meta(ge=1, le=LISTED_MAX)] = LISTED_MAX
    dry_run: bool = False


class RedriveIn(LettersIn, forbid_unknown_fields=True, kw_only=True):
    """`to`: send them to this topic instead of the group's retry topic; every group that reads it gets them."""

    to: str = ""


class SettledLetters(Struct, kw_only=True):
    """`count`: of letters that were settled, or would be. If it is the limit, more may be left. `letters`: of a dry
    run, the letters that are meant; give their places when you act.
    """

    count: int
    letters: list[LetterSummary]


@dataclass(frozen=True, slots=True)
class LettersBehind(DeadLetterFilter):
    """Only letters at `starts` or behind, by partition."""

    starts: Mapping[int, int] = field(default_factory=dict)

    def takes(self, letter: DeadLetter) -> bool:
        partition, offset = letter.place
        return offset >= self.starts.get(partition, 0) and DeadLetterFilter.takes(self, letter)


_letters_in = msgspec.json.Decoder(LettersIn)
_redrive_in = msgspec.json.Decoder(RedriveIn)


async def list_letter_groups(call: Call) -> Answer:
    return Answer(msgspec.json.encode(LetterGroups(groups=await call.caller.client.dead_letters.groups())))


async def list_letters(call: Call) -> Answer:
    group, query = call.names["group"], call.query
    client = call.caller.client
    await client.dead_letters.check_known(group)
    now_us = call.service.sources.now_us()
    since, before = (_time(name, query.get(name), now_us) for name in ("since", "before"))
    limit, settled = whole(query, "limit", LISTED, 1, LISTED_MAX), flag(query, "settled")
    form = choice(query, "values", FORMS)
    key, error, origin = text_bytes(query, "key"), query.get("error", ""), query.get("topic", "")
    try:
        topic = await client.describe_topic(dead_letter_topic(group))
    except UnknownTopic:  # the group has never had a dead letter
        return Answer(msgspec.json.encode(Letters(letters=[], left=0, next=None)))
    starts = offsets_at(query["cursor"], topic) if "cursor" in query else {}
    wanted = LettersBehind(frozenset(), since, before, error, key, origin, starts)
    found = await _listed(call, group, wanted, limit, settled=settled)
    starts = starts | {letter.place.partition: letter.place.offset + 1 for letter in found.letters}
    page = {
        "letters": [_with_record(letter, form) for letter in found.letters],
        "left": found.more,
        "next": cursor_of(topic.topic_id, starts) if found.more else None,
    }
    return Answer(msgspec.json.encode(page))


async def get_letter(call: Call) -> Answer:
    group = call.names["group"]
    place = _place(f"{call.names['partition']}:{call.names['offset']}")
    form = choice(call.query, "values", FORMS)
    found = await _named(call, group, [place])
    return Answer(msgspec.json.encode(_with_record(found.letters[0], form)))


async def redrive(call: Call) -> Answer:
    wanted = decode(_redrive_in, call.body)
    return await _settle(call, wanted, "redriven", wanted.to)


async def drop(call: Call) -> Answer:
    return await _settle(call, decode(_letters_in, call.body), "dropped")


async def _settle(call: Call, given: LettersIn, how: How, to: str = "") -> Answer:
    group, places = call.names["group"], frozenset(map(_place, given.places))
    if bool(places) == given.all:
        raise Problem("INVALID_REQUEST", "name the letters by `places`, or say `all`: true, not both")
    key = bytes_of("key", given.key, given.key_base64)
    wanted = DeadLetterFilter(places, given.since, given.before, given.error, key, given.topic)
    client = call.caller.client
    await client.dead_letters.check_known(group)
    if places:
        await _named(call, group, places)
    if given.dry_run:
        found = await _listed(call, group, wanted, given.limit)
        count = min(len(found.letters) + found.more, given.limit)
        summaries = [LetterSummary(**_summary(letter)) for letter in found.letters]
        return Answer(msgspec.json.encode(SettledLetters(count=count, letters=summaries)))
    call.share.take(READ_BYTES)
    with call.service.streams.one(call.caller.principal):
        count = await client.dead_letters.settle(group, wanted, how, to=to, letters_max=given.limit)
    return Answer(msgspec.json.encode(SettledLetters(count=count, letters=[])))


async def _named(call: Call, group: str, places: Iterable[LetterPlace]) -> DeadLetterList:
    """Return the letters at these places, settled ones too. Raises Problem (404) if one is missing."""
    places = frozenset(places)
    found = await _listed(call, group, DeadLetterFilter(places), len(places), settled=True)
    missing = places - {letter.place for letter in found.letters}
    if len(missing) > found.more:
        shown = ", ".join(map(str, sorted(missing)[:5]))
        raise Problem("NO_SUCH_LETTER", f"{dead_letter_topic(group)} has no dead letter at {shown}; nothing was done")
    return found


async def _listed(
    call: Call, group: str, wanted: DeadLetterFilter, limit: int, *, settled: bool = False
) -> DeadLetterList:
    """Return letters within the gateway's bounds of memory. A look reads the whole topic, so it counts as a stream."""
    call.share.take(READ_BYTES)
    with call.service.streams.one(call.caller.principal):
        found = await call.caller.client.dead_letters.list(
            group, wanted, settled=settled, letters_max=limit, bytes_max=call.service.settings.page_bytes_max
        )
    call.share.take(2 * sum(letter.size_bytes for letter in found.letters))
    return found


def _summary(letter: DeadLetter) -> dict[str, Any]:
    failures = letter.failures
    return {
        "place": str(letter.place),
        "origin": str(MessageId(*failures.origin)),
        "attempts": failures.attempts,
        "first_failure_ms": failures.first_ms,
        "error": failures.error,
        "state": letter.settled or "waits",
    }


def _with_record(letter: DeadLetter, form: str) -> dict[str, Any]:
    return _summary(letter) | {"record": msgspec.Raw(record_json(letter.message, form))}


def _place(text: str) -> LetterPlace:
    partition, _, offset = text.partition(":")
    if not all(part.isascii() and part.isdecimal() and len(part) < 19 for part in (partition, offset)):
        raise Problem("INVALID_REQUEST", f"{text[:40]!r} is no place of a dead letter: give PARTITION:OFFSET")
    return LetterPlace(int(partition), int(offset))


def _time(name: str, text: str | None, now_us: int) -> datetime | None:
    if text is None:
        return None
    found = position_of(name, text, now_us)
    if not isinstance(found, datetime):
        raise Problem("INVALID_REQUEST", f"the parameter {name} is a time with its zone (RFC 3339), or an age like 15m")
    return found
