"""Say what the default seeds of level *kafka* have to reach; `demands_on_clusters` says what that means."""

from __future__ import annotations

MUST_HAPPEN: dict[str, tuple[str, ...]] = {
    "kafka": (
        "a batch of an idempotent Kafka client was acknowledged",
        "batches of a Kafka client were sent again",
        "a batch of a Kafka client arrived twice",
        "a Kafka client has read",
        "the latest offset was told to a Kafka client",
        "a transaction of a Kafka client was committed",
        "a transaction of a Kafka client was aborted",
        "a transaction of a Kafka client was left alone",
        "a transaction of a Kafka client has ended its epoch",
        "a transactional Kafka client was fenced",
        "a record of a Kafka transaction became visible",
        "a processor has committed",
        "a processor restored a partition",
        "a classic member was given partitions",
        "a classic member was told: REBALANCE_IN_PROGRESS",
        "a classic member has committed",
        "a commit of a former generation was answered: UNKNOWN_MEMBER_ID",
        "a consumer was given partitions",
        "a consumer has begun with a partition",
        "a consumer has committed",
        "an answer to a heartbeat was lost",
        "an owner was killed when it had stored a withdrawal",
        "an owner was killed when it had stored the end of a transaction",
        "a partition was to move",
        "a broker stood still until another had claimed",
        "a term was opened",
        "a void segment",
        "a plan was finished",
        "disturbance: pause",
        "disturbance: kill",
        "disturbance: graceful stop",
        "disturbance: network cut",
        "disturbance: full store",
    ),
}

RARE: dict[str, frozenset[str]] = {
    "kafka": frozenset(
        {
            "a batch of a Kafka client arrived twice",
            "a transaction of a Kafka client was left alone",
            "a processor has committed",
            "a processor restored a partition",
            "a commit of a former generation was answered: UNKNOWN_MEMBER_ID",
            "an answer to a heartbeat was lost",
            "an owner was killed when it had stored a withdrawal",
            "an owner was killed when it had stored the end of a transaction",
            "a partition was to move",
            "a broker stood still until another had claimed",
            "a void segment",
            "disturbance: graceful stop",
            "disturbance: full store",
        }
    ),
}
