"""What one record costs `ledgermq consume --format jsonl`: the JSON form by hand, by Python's library, and by
msgspec and orjson where they are installed.

    .venv/bin/python -m bench.json_records

Microseconds of CPU a record, best of 7 runs of 20,000 records (28 November 2026, Python 3.11, one of two busy cores):

| form | 1 KB of JSON as value | 15 B as value |
|---|---|---|
| before: json | 15.4 | 10.6 |
| by hand | 7.4 | 3.6 |
| msgspec | 8.4 | 3.1 |
| orjson | 4.6 | 3.0 |

By hand costs no dependency, and gives the same bytes as the library (tests/unit/test_json_records.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from time import process_time

import ledgermq
from ledgermq.json_records import fields_of, json_line, time_text

RECORDS, RUNS = 20_000, 7
NOW_US = 1_764_330_000_000_000
LARGE = json.dumps({"name": "Zoe", "number": 17, "text": "lorem ipsum " * 80}).encode()
SMALL = b"two coffees, 17"


def messages(value: bytes) -> list[ledgermq.Message]:
    headers = (("from", b"web"), ("attempt", b"1"))
    return [
        ledgermq.Message("orders", n % 8, n, b"table-%d" % n, value, headers, NOW_US + n * 1234, "eu")
        for n in range(RECORDS)
    ]


def as_before(message: ledgermq.Message) -> bytes:
    """The line as it was made before, by the library alone."""
    return json.dumps(_plain(message, by_datetime=True), ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _plain(message: ledgermq.Message, *, by_datetime: bool = False) -> dict[str, object]:
    assert message.timestamp_us is not None
    assert message.timestamp is not None
    assert message.key is not None
    time = (
        message.timestamp.isoformat(timespec="microseconds").replace("+00:00", "Z")
        if by_datetime
        else time_text(message.timestamp_us)
    )
    return {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": time,
        "key": message.key.decode(),
        "value": message.value.decode(),
        "headers": [{"key": name, "value": data and data.decode()} for name, data in message.headers],
        "tag": message.tag,
    }


def microseconds(make: Callable[[ledgermq.Message], bytes], given: list[ledgermq.Message]) -> float:
    best = float("inf")
    for _ in range(RUNS):
        begun = process_time()
        b"".join(map(make, given))
        best = min(best, process_time() - begun)
    return best / len(given) * 1e6


def main() -> None:
    forms: dict[str, Callable[[ledgermq.Message], bytes]] = {"before: json": as_before, "by hand": json_line}
    for name, make in (("msgspec", "msgspec.json:encode"), ("orjson", "orjson:dumps")):
        module, _, function = make.partition(":")
        try:
            encode = getattr(import_module(module), function)
        except ImportError:
            continue
        forms[name] = lambda message, encode=encode: encode(_plain(message)) + b"\n"
    large, small = messages(LARGE), messages(SMALL)
    for name, form in forms.items():
        assert json.loads(form(large[0])) == fields_of(large[0])
        print(f"| {name} | {microseconds(form, large):.1f} | {microseconds(form, small):.1f} |")


if __name__ == "__main__":
    main()
