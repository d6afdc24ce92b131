"""Make docs/kafka.md from the table of APIs, so that the page cannot promise what is not served.

python -m ledgermq_broker.kafka.page > docs/kafka.md
"""

from __future__ import annotations

import sys

from ledgermq_broker.kafka.table import TABLE

HEAD = """\
# Clients of the Kafka protocol

This page is made by `make pages` from the table of APIs that the broker serves.

Programs that speak the Kafka protocol can produce to LedgerMQ and read from it. What they write is
what all other clients write: plain Parquet after compaction, readable by Spark. The port is off by
default and **new**.

## Five minutes

<!-- test: not run, it installs and starts a broker -->
```bash
pip install 'ledgermq[broker,kafka]'
ledgermq dev --kafka-port 9092
```

Any program of Kafka's world now has `127.0.0.1:9092` as its bootstrap server. With kcat:

<!-- test: not run, it needs the broker above; tests/kafka/test_page.py runs it -->
```bash
echo 'first message' | kcat -P -b 127.0.0.1:9092 -t hello
kcat -C -b 127.0.0.1:9092 -t hello -o beginning -e -q
```

In Python, here with confluent-kafka:

<!-- test: not run, it needs the broker above; tests/kafka/test_page.py runs it -->
```python
from confluent_kafka import Consumer, Producer

producer = Producer({"bootstrap.servers": "127.0.0.1:9092"})
producer.produce("hello", b"a message")
producer.flush()

consumer = Consumer(
    {"bootstrap.servers": "127.0.0.1:9092", "group.id": "readers", "auto.offset.reset": "earliest"}
)
consumer.subscribe(["hello"])
message = consumer.poll(30.0)
print(message.value() if message else "nothing came within 30 s")
consumer.close()
```

With the tools of Kafka's own distribution, which are written in Java:

<!-- test: not run, it needs the broker above; tests/kafka/test_page.py runs it -->
```bash
at='--bootstrap-server 127.0.0.1:9092'
kafka-topics.sh $at --create --topic orders --partitions 3
echo 'shop:3 pens' | kafka-console-producer.sh $at --topic orders \\
    --property parse.key=true --property key.separator=:
kafka-console-consumer.sh $at --topic orders --group packers --from-beginning --max-messages 1
kafka-consumer-groups.sh $at --describe --group packers
```

With Spark's own source and sink:

<!-- test: not run, it needs the broker above; tests/kafka/test_page.py runs it -->
```python
from pyspark.sql import SparkSession

spark = SparkSession.builder.config(
    "spark.jars.packages", "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
).getOrCreate()
orders = (
    spark.read.format("kafka")
    .option("kafka.bootstrap.servers", "127.0.0.1:9092")
    .option("subscribe", "orders")
    .load()
)
orders.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)", "partition", "offset").show()
```

With TLS and rules, a client needs three more lines:

<!-- test: not run, it needs a broker with certificates; tests/kafka runs the same -->
```python
secured = {
    "bootstrap.servers": "broker.example:9092",
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "shop",
    "sasl.password": "lmq_…",  # ledgermq token create shop
    "ssl.ca.location": "ca.pem",
}
```

In a cluster set [`kafka_port`](settings.md) in all brokers alike, and `kafka_advertised_address`
where clients reach them by another name. Partitions of a broker without the port have no leader
for these clients, and an alarm names it.

## What is served

"""

TAIL = """
A request of another API or version ends the connection; `ApiVersions` of a newer version is
answered in version 0 with what is served.

## What was tried

`make test-kafka` runs what says yes; – was not tried.

| | librdkafka 2 | aiokafka 0.14 | kafka-python 3 | Java 4.1 | franz-go 1.22 | kafkajs 2.2 |
|---|---|---|---|---|---|---|
| idempotent producer | yes | yes | yes | yes | yes | yes |
| gzip, snappy, lz4, zstd | yes | – | – | yes | – | – |
| members of groups, commits | yes | yes | yes | yes | yes | yes |
| `group.protocol=consumer` (KIP-848) | yes | – | – | yes | – | – |
| brokers leave | killed, cut off (`make chaos`) | yes | – | – | killed | killed |
| share groups (KIP-932), a member and a broker killed | – | – | – | yes | – | – |
| transactions | yes | yes | – | yes | yes | – |
| offsets of such members (KIP-848) in them | killed | – | – | killed | – | – |
| each with its own epoch (KIP-890) | – | – | – | yes | yes | – |
| creating and deleting topics | yes | yes | yes | yes | – | – |
| settings, the cluster, deleting records | yes | – | yes | yes | – | – |
| ACLs | yes | – | yes | yes | – | – |
| quotas | – | – | – | yes | – | – |
| SASL PLAIN through TLS | yes | yes | yes | – | – | – |
| OAUTHBEARER, again on the same connection | yes | – | – | – | – | – |

| program | seen |
|---|---|
| Kafka's tools 4.1 | `kafka-topics`, `-configs` (topics, brokers, users, groups), `-delete-records` |
| | `-console-producer`, `-console-consumer`, `-producer-perf-test`, `-consumer-perf-test` |
| | `-verifiable-producer`, `-verifiable-consumer`, `-broker-api-versions`, `-cluster` |
| | `-consumer-groups`, `-groups`, `-transactions` (list, describe, end by id), `-acls`, `-get-offsets` |
| | `-console-share-consumer`, `-share-groups` (list, members, offsets, deletion of both) |
| | `-log-dirs`; not served: `-configs` for clients without users, and addresses |
| Kafka Streams 4.1 | word count, `at_least_once` and `exactly_once_v2`; a restart restores it |
| Kafka Connect 4.1 | source and sink of files, standalone |
| Spark 4.3 | `format("kafka")` of 4.2: source, sink; batches, streams; by time; headers |
| PyFlink 2.3 | a [job](relays.md#flink) of its table API, with transactions; restoring it was not tried |
| FastStream 0.7, Celery 5.7 | handlers that publish; tasks, by kombu's transport `confluentkafka` |
| kcat 1.7 | writes and reads |

Of the tests in librdkafka's source (2.14.2) `make test-librdkafka` runs those that pass here, whole or in part;
for the others the table says what they want.

| of librdkafka's 168 tests | |
|---|---|
| 86 pass | 0001 0002 0003 0005 0007 0008 0012 0013 0014 0015 0016 0017 0018 0019 0020 0021 0022 0026 0029 0030 0031 \
0033 0034 0035 0036 0038 0039 0040 0041 0042 0044 0045 0048 0049 0050 0051 0052 0053 0054 0056 0057 0059 0060 0063 \
0064 0065 0067 0068 0069 0070 0073 0075 0076 0082 0083 0084 0085 0086 0088 0089 0090 0091 0093 0094 0099 0102 0107 \
0110 0111 0112 0113 0114 0118 0122 0123 0125 0127 0129 0130 0132 0135 0140 |
| 63 take no broker | 0000 0004 0006 0009 0022 0025 0031 0033 0034 0037 0039 0043 0045 0046 0053 0055 0058 0062 0066 \
0072 0074 0076 0078 0079 0080 0084 0086 0095 0097 0100 0102 0103 0104 0105 0106 0113 0116 0117 0120 0121 0124 0125 \
0128 0131 0133 0134 0136 0138 0139 0143 0144 0145 0146 0147 0148 0149 0150 0151 0152 0153 8001 |
| 0011 in part | an item is not appended to `cleanup.policy`, which is by key or by age, never both |
| 0061 in part | a lag that counts the control records of transactions, of which there are none here |
| 0081 in part | settings of brokers, leader epochs of commits, rights of the caller, short salts, quick deletions |
| 0103 in part | the leader epoch of a commit is not kept, and records of an open transaction have no offset |
| 0109 in part | ACLs for programs that prove nothing: with `security = rules` every program proves who it is |
| 0137 in part | offsets of control records, of which there are none here |
| 0028 0047 | a fault that its suite knows and leaves out |
| 0055 | latencies of a quick, quiet machine |
| 0077 | waits for Kafka's log cleaner, which settings of segments begin |
| 0092 | changes `message.format.version`, which Kafka 4 no longer has |
| 0097 | needs certificates that it makes itself |
| 0098 | begins with a program in Java that is not built here |
| 0101 | needs a replica that may be read |
| 0115 0119 | ACLs for programs that prove nothing, as 0109 |
| 0126 | needs an identity provider that it starts itself |
| 0142 | needs the brokers' `connections.max.reauth.ms`; here each token says how long it lasts |
| 8000 | runs until its user ends it |

## What differs from Kafka

- **Groups** are those of `ledgermq group`: committed offsets, lags, deletion and expiry are the
  same for both protocols, and clients of both see each other's groups. Members with
  `group.protocol=consumer` (KIP-848) and members of our own clients may share a group: the broker
  assigns partitions to all of them. Classic members, which assign each other, have groups of their
  own: one in a group of the others, or the other way round, gets `INCONSISTENT_GROUP_PROTOCOL`, our
  client `INVALID_REQUEST`. An empty group takes either, so a group changes its protocol while it is
  empty, not member by member. Stop the members of a group before you reset its offsets.
- **`group.protocol=consumer`**: `group.remote.assignor` may also be `sticky` or `consistent_hash`.
  Patterns are RE2, as in Kafka 4; with rules, a pattern needs the right to all topics that begin
  like it. The session is the brokers' `group_session_timeout_ms`, and heartbeats come every three
  seconds. A member commits what it holds, and what no member holds: for any other partition it gets
  `STALE_MEMBER_EPOCH`, where Kafka takes the commit. A member that has left may say so again. A
  group without members is of the classic type. Members of our own clients are shown to tools like
  all others. A filter of our clients keeps other members out of the group.
- **Share groups** (KIP-932, `KafkaShareConsumer` of Java 4.1) are [queue groups](queues.md), so
  members of both protocols may share one: each message is leased to one of them. What a member
  accepts or rejects is durable when it is answered; a release, or a lock that ends after 30
  seconds, lets the message come again. Each member is given all partitions of its topics, and takes
  from each what no other member holds. When a partition gets another owner, its locks end and its
  messages come again at once. When a client's connection ends, so do the locks that it had. Each of
  these deliveries counts, because the message may be what ended the program; one that a closing
  client gives back does not. A message that was delivered five times goes to the [dead
  letters](queues.md#dead-letters) of the group, `<group>.dlq`, as with our own members, and one
  that a member rejects goes there at once; Kafka 4.1 has no dead letters, and leaves both in their
  topic. With rules, the program needs the rights to describe, create and write the topic of the
  dead letters; without them, or if no topic can have that name or take a copy so large, the message
  is finished without a copy, as in Kafka 4.1. For every other reason, such as a quota or
  `accept.publish`, a message whose copy cannot be stored comes again after five seconds, and a
  member that has rejected it gets `INVALID_RECORD_STATE`, with the reason; so it is, too, while a
  topic of that name has records that the group did not put there. Messages whose [time to
  live](expiry.md) is over are finished without a delivery. Of an acknowledgement for offsets that
  are only partly held, what is held counts, and the answer is `INVALID_RECORD_STATE`. A group
  begins where
  `kafka_share_auto_offset_reset` says, at the end by default; Kafka's tools and `ledgermq queue
  reset` let it begin elsewhere. To Kafka's tools a group is empty when the coordinator knows no
  members of this protocol, so stop members of ours before you set offsets, or delete the group. A
  group exists where it has begun, so lists ask the owners of all partitions; while one does not
  answer, a list of all groups lacks what it alone knows, and a list of share groups is an error.
  All share groups have the same settings: `kafka-configs --entity-type groups` shows them, and takes what is in force
  already. Members of ours keep those of this protocol out if they have a filter. A member that asks
  for a group with the name of a consumer group that has members gets `GROUP_ID_NOT_FOUND`; other
  checks of names there are none ([why](decisions/0104-kafka-share-groups.md)).
- **Commits** are fenced by the generation or the member's epoch, may go back, and may lie beyond
  the end, as in Kafka. They expire together, when the group has had neither members nor commits for
  `offsets_retention_ms`. A group id may be any text. `ledgermq group list` shows one with other
  characters than `A-Za-z0-9._-` as `__kafka.` and base64.
- **Takeover.** When another broker takes over the coordinator, members go on: the generation and
  the assignments are in the log, and each session begins again.
- **Administration.** Clients create and delete topics, and add partitions. Settings go by the names
  of [settings](settings.md), which are Kafka's where Kafka has them. Those that say how Kafka
  stores a topic (`min.insync.replicas`, `unclean.leader.election.enable`, `segment.*`, `flush.*`
  and others) are accepted without effect; every other name gets `INVALID_CONFIG`. `retention.ms`,
  `retention.bytes` and the bounds of timestamps above 2⁵³ mean −1, no bound; `compression.type` of
  `gzip` and `snappy` means `lz4`. The same names and values count when settings are changed.
  `AlterConfigs`, which replaces all settings, never ends a legal hold by leaving it out. No request
  changes settings of brokers. A topic has one replica, whatever is asked.
- **Settings that are described** are those in force. A program that may describe a topic gets all
  of its settings under our names, each with its default. Where the default is a setting of the
  brokers, its source is the broker. What is accepted without effect is not kept, so it is not
  shown. A broker shows the dozen names that programs look for, read-only.
- **Deleted topics** can be brought back for `topic.delete.grace.ms`, a day by default, and keep
  their name until then: creating the topic again gets `TOPIC_ALREADY_EXISTS`. Where programs delete
  and create a topic in turn, set `topic.delete.grace.ms=0` on it: then creating it waits, 10 s at
  most, until its files are gone.
- **Time-outs of requests** that change topics are a second at least. A change that has not ended by
  then gets `REQUEST_TIMED_OUT`, and may still happen. A request above a quota waits, 10 s at most;
  then it gets `THROTTLING_QUOTA_EXCEEDED`. A bound of the cluster, such as `topics_max`,
  gets `POLICY_VIOLATION`.
- **Security.** TLS, certificates of clients and `security = rules` count as on the port of our own
  clients, and rules and quotas are the same ([access](access.md)). With rules, a connection may
  send only `ApiVersions` and SASL until it has authenticated, and has 10 s for that. `PLAIN` takes
  a token (`ledgermq token create`) as its password, whatever the user name; `OAUTHBEARER` takes a
  signed token of the identity provider, or one of ours. Without TLS, tokens are taken from programs
  on the broker's own machine only. A wrong token gets `SASL_AUTHENTICATION_FAILED`, and the audit
  log says why. A connection ends when its token expires or is revoked; a client that authenticates
  again before (KIP-368) keeps it. GSSAPI and delegation tokens are not offered. With
  `security = open`, any token is taken, as on the other port. A producer id belongs to the
  principal that used it first.
- **Passwords.** `SCRAM-SHA-256` and `SCRAM-SHA-512` prove a password without sending it. A program
  that may change the cluster sets one with Kafka's own tool, `kafka-configs --alter --entity-type
  users --entity-name ann --add-config 'SCRAM-SHA-512=[password=…]'`, and `--delete-config` removes
  it. It is in force at every broker when the command returns. The principal is `user:ann`, as with a
  token of that user, but without groups. Brokers store what proves the password (RFC 5802), never
  the password. Draw a long one: a reader of the bucket may try short ones. A password has 4,096
  to 16,384 iterations. As with a token that is revoked, connections that a former password proved
  end. Our own clients take tokens only. Without TLS these mechanisms are offered to programs on the
  broker's own machine only, as the others are. With `security = open` a wrong password is refused,
  because the broker cannot prove that it knows it.
- **ACLs** are the [rules](access.md#rules) of `ledgermq acl`, for programs that may change them. On
  topics, Write, Read, Describe, Create, Alter and Delete are `produce`, `consume`, `describe`,
  `create`, `alter` and `delete`; All is these six. Groups, transactional ids and the cluster have
  one operation each, which Read, Write and Alter stand for, and All, too. So some ACLs allow more
  than in Kafka: Describe on a topic shows its settings, Alter changes them, Read on a group allows
  deleting it, and Alter on the cluster is all of `cluster`. To deny them denies all of that. An ACL
  of less than a rule, such as DescribeConfigs on a topic or Describe on a group, is taken only
  where a rule for the same principal and name allows it already. All else that has no rule gets
  `INVALID_REQUEST`, and so does a host other than `*`. Every producer may be idempotent. Principals
  are `User:NAME`, `cert:NAME`, `jwt:SUBJECT` and `group:NAME`. A prefix of groups and transactional
  ids means those whose names have no other characters than `A-Za-z0-9._-`, so such a prefix is not
  denied. A rule that no ACL can say is not listed. With `security = open` these requests get
  `SECURITY_DISABLED`.
- **Quotas** are those of `ledgermq quota` ([access](access.md#quotas)), for programs that may
  change them. `producer_byte_rate` is `bytes_in` and `consumer_byte_rate` is `bytes_out`, each at
  every broker. A user is a principal: `NAME` of a token, `cert:NAME`, `jwt:SUBJECT`, or `ANONYMOUS`
  where rules are not enforced. The default user is each principal that has no quota. A client id
  has a quota for each principal, so name the user or the default user, too. Two quotas bind a
  request, that of its principal and that of its client id, where Kafka takes the narrower one.
  `request_percentage`, `controller_mutation_rate` and quotas of addresses get `INVALID_REQUEST`.
  Other limits of ours are neither shown nor touched.
- **Acknowledgements.** `acks=1` waits for the store, as `all` does. `acks=0` gets no answer; an
  error ends the connection, so that the client looks for the partition's leader.
- **Transactions** are those of our own clients ([transactions](transactions.md)): the same bounds,
  rules for transactional ids, `ledgermq transaction list`, and alarms. Records of an open
  transaction have no offset, so no reader waits for them, and none has to leave out what was
  aborted. A producer receives no offset of its records: Java's `hasOffset()` is false, librdkafka
  shows none. The time-out, at most 15 minutes, begins when the first partition or group is added,
  and again when another broker takes the coordinator over. Both protocols of Kafka are offered. A
  transactional id gets a new producer id when
  a Kafka client takes it over from one of our own, or the other way round. A transaction has at
  most 1 GiB in a bundle, and 70,000 batches. `DescribeProducers` and `WriteTxnMarkers` are not
  served: records of an open transaction have no offset to show, and markers are for Kafka's
  brokers. So `kafka-transactions` lists, describes, and ends an open transaction by its id
  (`forceTerminateTransaction`); its `abort` and `find-hanging` say that the node does not support
  DESCRIBE_PRODUCERS. No transaction hangs here: a bundle that has anything of one asks its
  coordinator, which aborts it at its time-out. `ledgermq transaction abort` ends one before, too. A
  transaction begins only while every broker runs a release that knows them.
- **The second protocol of transactions** (KIP-890, `transaction.version=2`) is what Java 4 and franz-go speak
  while every broker runs a release that knows it. Nothing is added beforehand: the first batch of a
  partition, and the first offset of a group, add it. Each transaction has its own epoch,
  which `EndTxn` gives to the producer. So what arrives late belongs to an epoch that is over, and
  comes into no later transaction. After a time-out or an operator's abort the producer gets
  `TRANSACTION_ABORTABLE`: it aborts, and goes on. In Kafka it is fenced then, as it is here where
  another producer has begun with its id. A commit of a transaction that has sent nothing gets
  `INVALID_TXN_STATE`. A client that has begun with this protocol goes on with it, so restart such
  clients if you go back to an earlier release.
- **The first protocol**, which librdkafka, aiokafka and kafka-python speak, keeps the epoch from
  one transaction to the next. After a time-out or an operator's abort the producer is fenced. A
  request of a dead connection that arrives late may count for the next transaction: `EndTxn` may
  end it, `AddPartitionsToTxn` may begin it, and `TxnOffsetCommit` may put its older offsets in
  place of newer ones. Where a partition has moved to another bundle, the next batch of a producer
  that goes on in the same epoch gets `UNKNOWN_PRODUCER_ID`: abort, and initialize again.
- **librdkafka may wait without end** in `send_offsets_to_transaction`, whatever its time limit, when
  the broker that coordinated the group has gone for good (its issues 5456 and 5511, open in
  2.16). With Kafka that happens when a broker is removed; here each broker that starts again counts
  as a new one. So restart a program in which this call takes much longer than its time limit:
  `init_transactions` aborts what it left open, and `max.poll.interval.ms` says how long its group
  waits for it.
- **Kafka Streams** restores its counts and tables from a topic when it takes a task over, and goes
  on at the group's offsets. So `ListOffsets` of the end, asked with `read_uncommitted` as Streams
  does, waits for a transaction that is committed and becomes visible a moment later, and for an
  open one that has added a group. After ten seconds it answers `NOT_LEADER_OR_FOLLOWER`, which
  clients repeat. So a consumer that starts at `latest`, and tools that show lags, wait for such
  transactions, at most for their `transaction.timeout.ms`, and as long as those of several
  producers overlap that are open for more than ten seconds each; with `read_committed` they do not
  wait. Add a group shortly before the commit, as Kafka's own programs do. It waits for no other
  open transaction: a task that never commits offsets of a source topic, as one with punctuators
  only, may restore its state without the last transaction of a predecessor that is still alive.
  Streams receives no offset of what it writes in a transaction.
- **Offsets in a transaction**: of a request all are taken, or none. `OffsetFetch` with
  `require_stable` gets `UNSTABLE_OFFSET_COMMIT` until the transaction has ended. Offsets are
  committed after the transaction's records can be read in all bundles that hold none of its
  groups.
- **Idempotence.** A batch that is sent again is stored once, also after a takeover. Weaker than our
  own client: the *first* batch of a producer in a partition may be stored twice if it is sent again
  after 100,000 other sessions have written to the bundle. After a takeover by a broker with another
  version of pyarrow, a batch that is sent again may be refused as out of order, not stored twice.
- **Errors.** A broker without room makes the connection wait, for at most half of the request's
  time-out and 10 s. What a client must not repeat gets a permanent code.
- **Compression.** What came uncompressed, with lz4 or with zstd is stored so; gzip and snappy
  become lz4. Batches leave uncompressed.
- **Timestamps** are kept to the millisecond they came with. **Tags** of our own client leave as the
  header `ledgermq.tag`.
- **Isolation.** Both levels read the same: undecided records have no offset yet, so no reader waits
  for an open transaction.
- **Sizes.** A record batch has at most 32 MiB, and a fifth of `produce_memory_bytes_max`. An answer
  has about 16 MiB of records at most.

## Bounds of the port

The port takes `kafka_connections_max` connections. A principal may have as many of them as are
still free, so one alone gets half. The same holds for a host (of IPv6, the /64) where rules are not
enforced, or while a connection has not authenticated. Above that the broker closes the connection
that is idle for longest, of this caller or of one that has more. If none is idle, it closes the new
one.

1,000 connections may have sent no request yet, or with rules not have authenticated. Each has 10 s
for it, and 64 KiB for a request. A request has to arrive whole within 30 s. A client that takes
nothing of an answer for 30 s loses its connection. Idle connections end after ten minutes. Quotas
count by client id and principal, as for all calls.

A request has at most 100 MiB, 16 MiB without records, and 50,000 elements of arrays. The broker
stops reading from a connection that holds 8 MiB of requests without an answer. All connections
together may hold 256 MiB more than `produce_memory_bytes_max`. Above that the broker looks for the
principal or host that holds most, and closes its largest connection. The log has one line a second
at most about connections that end so.

Requests that are in service may hold a million elements together, one principal or host as many as
are free. Requests begin in [turns](security.md#what-one-caller-can-take) of principals or hosts.
The broker reads nothing from a connection whose request waits, and refuses none for it.

Share sessions of all connections may have 200,000 places together: one each, and one for each
partition that they read. The sessions of one host may have as many as are free. Above that a
session does not begin, or reads no further partitions: `SHARE_SESSION_LIMIT_REACHED`.
"""


def page() -> str:
    rows = ["| API | key | versions | note |", "|---|---|---|---|"]
    rows += [
        f"| {one.api.name} | {one.api.key} | {one.first}–{one.last} | {one.note} |"
        for one in sorted(TABLE, key=lambda one: one.api.key)
    ]
    return HEAD + "\n".join(rows) + "\n" + TAIL


if __name__ == "__main__":
    sys.stdout.write(page())
