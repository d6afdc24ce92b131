// Where one message went: where it is stored, which groups have read it, and its copies in retry and dead-letter topics.
import type { JSX } from "preact";
import { query } from "../api";
import { link, place, set } from "../place";
import { count, oneLine, visible } from "../show";
import { type Column, Facts, Field, Table, Trouble, When, useGet } from "../ui";
import type { RecordOut } from "../types";
import { Headers, Value } from "./value";

interface GroupRead { group: string; state: string; committed: number | null; committed_ms: number | null }
interface QueueRead { group: string; state: string; start: number; end: number }
interface Copy { group: string; kind: string; id: string; time: string | null; attempts: number; error: string; settled: string | null }
interface Trace {
  id: string; record: RecordOut; stored_at: string | null; segment: string | null; parquet_file: string | null;
  groups: GroupRead[]; queues: QueueRead[]; copies: Copy[]; unfinished: string[];
}

const GROUPS: Column<GroupRead>[] = [
  { name: "Group", show: (row) => <a href={link(["groups", row.group])}>{visible(row.group)}</a> },
  { name: "State", show: (row) => row.state },
  { name: "Committed", right: true, show: (row) => (row.committed === null ? "–" : count(row.committed)) },
  { name: "When", show: (row) => <When at={row.committed_ms} /> },
];
const QUEUES: Column<QueueRead>[] = [
  { name: "Queue group", show: (row) => <a href={link(["queues", row.group])}>{visible(row.group)}</a> },
  { name: "State", show: (row) => row.state },
  { name: "Finished below", right: true, show: (row) => count(row.start) },
  { name: "Delivered below", right: true, show: (row) => count(row.end) },
];
const COPIES: Column<Copy>[] = [
  { name: "Kind", show: (row) => row.kind },
  { name: "Group", show: (row) => visible(row.group) },
  { name: "Message", show: (row) => <a href={traceOf(row.id)}>{visible(row.id)}</a> },
  { name: "Time", show: (row) => <When at={row.time} /> },
  { name: "Attempts", right: true, show: (row) => count(row.attempts) },
  { name: "Error", show: (row) => oneLine(row.error, 120) },
  { name: "Settled", show: (row) => row.settled ?? "–" },
];

export function traceOf(id: string): string {
  return link(["trace"], { id });
}

export function TracePage(): JSX.Element {
  const id = place.value.params.id ?? "";
  const found = useGet<Trace>(id && `/v1/messages/trace${query({ id, timeout_ms: 10_000 })}`);
  const trace = found.data;
  return (
    <>
      <h1>Trace</h1>
      <div class="bar">
        <Field label="Message (topic:partition:offset)" value={id} search onSet={(value) => set({ id: value.trim() || undefined })} placeholder="orders:3:4711" />
        {id && <button type="button" onClick={found.reload}>Reload</button>}
      </div>
      <Trouble error={found.error} />
      {!id && <p class="dim">A trace shows where a message is stored, which groups have read it, and its copies. Each message in Messages has a link to it.</p>}
      {found.loading && <p role="status">Searches …</p>}
      {trace && <Found trace={trace} />}
    </>
  );
}

function Found({ trace }: { trace: Trace }): JSX.Element {
  const { record } = trace;
  return (
    <>
      {trace.unfinished.map((text) => <p key={text} class="note">{`Not searched to its end: ${visible(text)}`}</p>)}
      <section aria-label="Message">
        <h2>Message</h2>
        <Facts rows={[
          ["Place", <a href={link(["topics", record.topic, "messages"], { partition: record.partition, from: record.offset, open: `${record.partition}:${record.offset}` })}>{visible(trace.id)}</a>],
          ["Time of its producer", <When at={record.timestamp ?? (record.timestamp_us === undefined ? null : `${record.timestamp_us} µs`)} />],
          ["Stored", <When at={trace.stored_at} />],
          ["Segment", trace.segment ? <code>{visible(trace.segment)}</code> : "–"],
          ["Parquet file", trace.parquet_file ? <code>{visible(trace.parquet_file)}</code> : "–"],
        ]} />
        <div class="panel"><Value record={record} /><Headers record={record} /></div>
      </section>
      <section aria-label="Readers">
        <h2>Readers</h2>
        <Table label="Groups" rows={trace.groups} keyOf={(row) => row.group} columns={GROUPS} empty="No consumer group has committed offsets of this partition." />
        {trace.queues.length > 0 && <Table label="Queue groups" rows={trace.queues} keyOf={(row) => row.group} columns={QUEUES} />}
      </section>
      <section aria-label="Copies">
        <h2>Copies</h2>
        <Table label="Copies" rows={trace.copies} keyOf={(row) => row.id} columns={COPIES} empty="No retry topic and no dead-letter topic has a copy." />
      </section>
    </>
  );
}
