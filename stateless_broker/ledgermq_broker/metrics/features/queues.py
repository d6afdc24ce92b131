"""Count what members of queue groups lease and say. The numbers of messages that are leased or left are read at
each scrape (`scrape.py`).
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

from ledgermq_broker.queues.counts import ShareCounts


class ShareMetrics(ShareCounts):
    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"ledgermq_queue_{name}", text, ("group", *labels), registry=registry)

        self._leased = counter("messages_leased", "Messages that were leased to members of queue groups, and sent")
        self._again = counter("messages_leased_again", "Those of them that had been delivered before")
        self._answered = counter(
            "messages_answered", "Messages about which a member said: accept, reject, release, return, renew", "word"
        )
        self._late = counter(
            "messages_answered_late", "Messages for which this did not count: their lease had ended", "word"
        )
        self._expired = counter("leases_expired", "Messages whose lease ended by its time")

    def leased(self, group: str, messages: int, again: int) -> None:
        self._leased.labels(group).inc(messages)
        self._again.labels(group).inc(again)

    def answered(self, group: str, word: str, messages: int, late: int) -> None:
        if messages:
            self._answered.labels(group, word).inc(messages)
        if late:
            self._late.labels(group, word).inc(late)

    def expired(self, group: str, messages: int) -> None:
        self._expired.labels(group).inc(messages)
