// What levels 1 and 2 of docs/protocol.md need: calls that find the owner and are repeated, produce, fetch.
import { CallOptions, ClientUnaryCall, credentials, Metadata, ServiceError, status } from "@grpc/grpc-js";
import { crc32c } from "@node-rs/crc32";
import { randomBytes } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { decodeBatch, encodeBatch } from "./batch";
import {
  BrokerClient, Error as Failure, FetchRequest, OpenProducerRequest, ProduceBatch, ProduceRequest, ProducerSession,
} from "./ledgermq/protocol/ledgermq";

const MESSAGE_BYTES_MAX = 33 * 1024 * 1024 + 64;
const ANSWER_MS = 40_000;
const ATTEMPTS = 60;
const REDIRECTS = 3; // in a row, without a pause
const RETRIABLE = new Set(["NOT_OWNER", "UNAVAILABLE", "DEADLINE_EXCEEDED", "TOPIC_BEING_DELETED", "RESOURCE_EXHAUSTED",
  "QUOTA_EXCEEDED", "STORE_FULL"]);
// Libraries make each of these of a line that broke during the call.
const LOST = new Set([status.UNAVAILABLE, status.CANCELLED, status.DEADLINE_EXCEEDED, status.RESOURCE_EXHAUSTED,
  status.INTERNAL, status.UNKNOWN]);
const LIMITS = {
  "grpc.max_receive_message_length": MESSAGE_BYTES_MAX,
  "grpc.max_send_message_length": MESSAGE_BYTES_MAX,
  "grpc.keepalive_time_ms": 10_000,
  "grpc.keepalive_timeout_ms": 5_000,
  "grpc.keepalive_permit_without_calls": 1,
  "grpc.max_reconnect_backoff_ms": 2_000,
};

export class Refused extends Error {
  constructor(readonly code: string, text: string) { super(`${code}: ${text}`); }
}

type Unary<Q, A> = (
  request: Q, metadata: Metadata, options: Partial<CallOptions>,
  done: (error: ServiceError | null, answer: A) => void,
) => ClientUnaryCall;

/** Makes one call. Throws the error of gRPC. */
export function ask<Q, A>(broker: BrokerClient, method: Unary<Q, A>, request: Q): Promise<A> {
  return new Promise((resolve, reject) => {
    const options = { deadline: Date.now() + ANSWER_MS };
    method.call(broker, request, new Metadata(), options, (error, answer) => error ? reject(error) : resolve(answer));
  });
}

export interface Session { topic: string; partition: number; id: Buffer; sequence: bigint; openedSlot: bigint }
export interface Record { offset: bigint; value: Buffer }

export function exact(failure: Failure): string { return failure.exactCode || failure.code; }
export function placeOf(topic: string, partition: number): string { return `${topic}-${partition}`; }

export class Client {
  private readonly owners = new Map<string, string>();
  private readonly brokers = new Map<string, BrokerClient>();

  /** `first`: the address of any broker. */
  constructor(private readonly first: string) {}

  close(): void { for (const broker of this.brokers.values()) broker.close(); }

  private broker(address: string): BrokerClient {
    let found = this.brokers.get(address);
    if (!found) this.brokers.set(address, found = new BrokerClient(address, credentials.createInsecure(), LIMITS));
    return found;
  }

  /**
   * Calls the owner of a place: a partition, or the coordinator of a group. Answers name it. `once` must send the same
   * request each time; `errorIn` finds the error of the one partition that was asked for.
   */
  async retry<A>(place: string, once: (broker: BrokerClient) => Promise<A>,
    errorIn: (answer: A) => Failure | undefined): Promise<A> {
    for (let attempt = 0, pause = 50, redirects = 0; attempt < ATTEMPTS; attempt++) {
      const address = this.owners.get(place) ?? this.first;
      let failure: Failure | undefined;
      try {
        const answer = await once(this.broker(address));
        failure = errorIn(answer);
        if (!failure?.code) return answer;
      } catch (error) {
        failure = errorOf(error as ServiceError);
      }
      if (!RETRIABLE.has(failure.code)) throw new Refused(exact(failure), failure.message);
      if (failure.owner && failure.owner !== address) {
        this.owners.set(place, failure.owner);
        if (++redirects <= REDIRECTS) continue; // more: two brokers name each other
      } else {
        this.owners.delete(place);
        redirects = 0;
      }
      await sleep(Math.max(pause, failure.retryAfterMs));
      pause = Math.min(2 * pause, 2000);
    }
    throw new Refused("UNAVAILABLE", `the owner of ${place} did not answer`);
  }

  async openSession(topic: string, partition: number): Promise<Session> {
    const request = OpenProducerRequest.create({ partitions: [{ topic, partition }] });
    const answer = await this.retry(placeOf(topic, partition), (broker) => ask(broker, broker.openProducer, request),
      (answer) => answer.partitions[0].error);
    return { topic, partition, id: randomBytes(16), sequence: 0n, openedSlot: answer.partitions[0].openedSlot };
  }

  /** Stores the values once, however often the call is repeated; returns the offset of the first one. */
  async produce(session: Session, values: Buffer[]): Promise<bigint> {
    const payload = encodeBatch(values);
    const producer = ProducerSession.create(
      { id: session.id, sequence: session.sequence, openedSlot: session.openedSlot });
    const batch = ProduceBatch.create({
      topic: session.topic, partition: session.partition, length: payload.length, crc: crc32c(payload),
      recordCount: values.length, schema: 1, producer,
    });
    const request = ProduceRequest.create({ header: { batches: [batch] }, payload });
    const answer = await this.retry(placeOf(session.topic, session.partition),
      (broker) => ask(broker, broker.produceOnce, request), (answer) => answer.results[0].error);
    session.sequence += BigInt(values.length);
    return answer.results[0].baseOffset;
  }

  /** Returns records from an offset on, and the offset that follows them. Waits `maxWaitMs` for a first one. */
  async fetch(topic: string, partition: number, offset: bigint, maxWaitMs: number): Promise<[Record[], bigint]> {
    const request = FetchRequest.create({ partitions: [{ topic, partition, offset }], maxWaitMs });
    const answer = await this.retry(placeOf(topic, partition), (broker) => ask(broker, broker.fetchOnce, request),
      (answer) => answer.header!.partitions[0].error ?? damageIn(answer.header!.partitions[0].batches, answer.payload));
    const found = answer.header!.partitions[0], records: Record[] = [];
    let next = found.nextOffset > offset ? found.nextOffset : offset, at = 0;
    for (const batch of found.batches) {
      for (const { row, value } of decodeBatch(answer.payload.subarray(at, at + batch.length))) {
        const place = batch.baseOffset + BigInt(row);
        if (place >= offset) records.push({ offset: place, value }); // the first batch may begin below it
      }
      at += batch.length;
      const after = batch.baseOffset + BigInt(batch.recordCount);
      if (after > next) next = after;
    }
    return [records, next];
  }
}

function damageIn(batches: { length: number; crc: number }[], payload: Buffer): Failure | undefined {
  let at = 0;
  for (const { length, crc } of batches) {
    if (crc32c(payload.subarray(at, at + length)) !== crc) {
      return Failure.create({ code: "UNAVAILABLE", message: "a batch came damaged" });
    }
    at += length;
  }
  return undefined;
}

/** Returns the broker's error, which a trailer carries. A status without it came from gRPC itself. */
function errorOf(error: ServiceError): Failure {
  const [sent] = error.metadata?.get("ledgermq-error-bin") ?? [];
  if (sent) return Failure.decode(sent as Buffer);
  if (error.code === undefined) throw error;
  return Failure.create({ code: LOST.has(error.code) ? "UNAVAILABLE" : "NO_BROKER", message: error.message });
}
