// What level 3 of docs/protocol.md needs: a member of a consumer group, as one loop.
import { randomUUID } from "node:crypto";
import { ask, Client, exact, placeOf, Record, Refused } from "./client";
import {
  CommitOffsetsRequest, FetchCommittedRequest, GivenPartition, GroupHeartbeatRequest, GroupStep, ListOffsetsRequest,
  OffsetCommit,
} from "./ledgermq/protocol/ledgermq";

const IDLE_MS = 200; // the coordinator holds a heartbeat for so long, while there is nothing to read

/** `next`: offset to read from; `finished`: committed up to here. */
interface Held { given: GivenPartition; next: bigint; finished: bigint }

/** Reads partitions that the coordinator gives to it, and commits what it has passed on. */
export class Member {
  private readonly id = randomUUID();
  private readonly place: string;
  private held = new Map<string, Held>();
  private epoch = 0n; // group_epoch of the last answer
  private counter = 0n; // of commits; it only grows

  constructor(private readonly client: Client, private readonly group: string, private readonly topic: string) {
    this.place = `group ${group}`;
  }

  /** Passes records on until `hasEnded()`; then it leaves. */
  async run(hasEnded: () => boolean, take: (partition: number, record: Record) => void): Promise<void> {
    for (let step = GroupStep.JOIN, wait = 0; ; step = GroupStep.STAY) {
      try {
        await this.heartbeat(step, wait);
      } catch (error) {
        if (!(error instanceof Refused && error.code === "UNKNOWN_MEMBER")) throw error;
        this.held.clear(); // removed: join again, owning nothing
        this.epoch = 0n;
        await this.heartbeat(GroupStep.JOIN, 0);
      }
      wait = await this.read(take) ? 0 : IDLE_MS;
      await this.commit();
      if (hasEnded()) return this.heartbeat(GroupStep.LEAVE, 0);
    }
  }

  /** Reports what the member holds, and takes what it is given. All that it gives back is committed already. */
  private async heartbeat(step: GroupStep, maxWaitMs: number): Promise<void> {
    const request = GroupHeartbeatRequest.create({
      group: this.group, memberId: this.id, step, maxWaitMs, seenEpoch: this.epoch,
      owned: [...this.held.values()].map((held) => held.given),
      subscription: step === GroupStep.JOIN ? { topics: [this.topic] } : undefined,
    });
    const answer = await this.client.retry(this.place, (broker) => ask(broker, broker.groupHeartbeat, request),
      () => undefined);
    if (step === GroupStep.LEAVE) return;
    this.epoch = answer.groupEpoch;
    const before = this.held;
    this.held = new Map();
    for (const given of answer.assigned) {
      const place = placeOf(given.topic, given.partition), had = before.get(place);
      this.held.set(place, had?.given.epoch === given.epoch ? had : await this.begin(given));
    }
  }

  /** Finds where to read: at the committed offset, or at the beginning. */
  private async begin(given: GivenPartition): Promise<Held> {
    const { topic, partition } = given;
    const request = FetchCommittedRequest.create({ group: this.group, partitions: [{ topic, partition }] });
    const found = await this.client.retry(this.place, (broker) => ask(broker, broker.fetchCommitted, request),
      (answer) => answer.partitions[0].error);
    const committed = found.partitions[0].offset;
    if (committed !== undefined) return { given, next: committed, finished: committed };
    const query = ListOffsetsRequest.create({ queries: [{ topic, partition, earliest: true }] });
    const answer = await this.client.retry(placeOf(topic, partition),
      (broker) => ask(broker, broker.listOffsets, query), (answer) => answer.results[0].error);
    return { given, next: answer.results[0].offset, finished: 0n };
  }

  /** Passes on what is there in each partition; returns whether there was something. */
  private async read(take: (partition: number, record: Record) => void): Promise<boolean> {
    let any = false;
    for (const held of this.held.values()) {
      const [records, next] = await this.client.fetch(held.given.topic, held.given.partition, held.next, 0);
      for (const record of records) take(held.given.partition, record);
      any ||= records.length > 0;
      held.next = next;
    }
    return any;
  }

  /** Commits what was passed on. A partition that is no longer the member's is refused, and goes with the next answer. */
  private async commit(): Promise<void> {
    const moved = [...this.held.values()].filter((held) => held.next > held.finished);
    if (!moved.length) return;
    const commits = moved.map(({ given, next }) => OffsetCommit.create({
      topic: given.topic, topicId: given.topicId, partition: given.partition, epoch: given.epoch,
      counter: ++this.counter, offset: next,
    }));
    const request = CommitOffsetsRequest.create({ group: this.group, memberId: this.id, commits });
    const answer = await this.client.retry(this.place, (broker) => ask(broker, broker.commitOffsets, request),
      (answer) => answer.results.map((each) => each.error).find((each) => each?.code && exact(each) !== "STALE_ASSIGNMENT"));
    answer.results.forEach((each, row) => { if (!each.error?.code) moved[row].finished = moved[row].next; });
  }
}
