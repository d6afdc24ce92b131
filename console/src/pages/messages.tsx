import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Problem, events, isKept, query, signedOut, part } from "../api";
import { link, place, set } from "../place";
import { bytesOf, count, hex, oneLine, visible } from "../show";
import { Choice, type Column, Field, Table, Trouble, When, useGet } from "../ui";
import type { RecordOut, TopicDetails } from "../types";
import { traceOf } from "./trace";
import { Headers, Value } from "./value";

const LIMIT = 50;
const LIVE_MAX = 200;
const HIDDEN_MS_MAX = 60_000;
const PARTITIONS_MAX = 256;

export const idOf = (record: RecordOut): string => `${record.partition}:${record.offset}`;

export function keyText(record: RecordOut): string {
  if (typeof record.key === "string") return record.key;
  const data = bytesOf(null, record.key_base64);
  return data ? hex(data, 16).slice(10, 57).trim() : "";
}

export function valueText(record: RecordOut): string {
  if (typeof record.value === "string") return record.value;
  const data = bytesOf(null, record.value_base64);
  return data ? hex(data, 32).slice(10, 57).trim() : "";
}

interface Page { records: RecordOut[]; next?: string; next_offset?: number; at_end?: boolean; rest?: unknown[]; high_watermark?: number; log_start?: number }

// The partitions to read: the gateway takes so many at most, and does not choose among them.
function chosen(topic: TopicDetails, partition: string): string {
  return partition || (topic.partitions > PARTITIONS_MAX ? Array.from({ length: PARTITIONS_MAX }, (_, number) => number).join(",") : "");
}

// The path of the page that the URL asks for, and whether it goes downwards.
export function pathOf(topic: TopicDetails, params: Record<string, string>): { path: string; newest: boolean } {
  const { partition = "", from = "newest", key = "", tags = "", filter = "", cursor = "" } = params;
  const at = `/v1/topics/${part(topic.name)}`;
  if (key) return { path: `${at}/find${query({ key, limit: LIMIT })}`, newest: true };
  const newest = from === "newest";
  const begin = newest ? { order: "newest" } : { from };
  if (partition && /^\d+$/.test(from)) return { path: `${at}/partitions/${partition}/records${query({ from: cursor || from, limit: LIMIT, tags, filter })}`, newest: false };
  const which = cursor ? { cursor, order: newest ? "newest" : undefined } : begin;
  return { path: `${at}/records${query({ ...which, partitions: chosen(topic, partition), limit: LIMIT, tags, filter })}`, newest };
}

// The same records as a file. A link carries the cookie, so a token that is kept in the page's memory cannot do it.
export function downloadOf(topic: TopicDetails, params: Record<string, string>): string {
  const { partition = "", from = "newest", tags = "", filter = "" } = params;
  return `/v1/topics/${part(topic.name)}/download${query({ from: from === "newest" ? "earliest" : from, partitions: chosen(topic, partition), tags, filter })}`;
}

export function Messages({ topic }: { topic: TopicDetails }): JSX.Element {
  const params = place.value.params;
  const { partition = "", from = "newest", key = "", tags = "", filter = "", live = "", open = "", cursor = "" } = params;
  const { path, newest } = pathOf(topic, params);
  const page = useGet<Page>(live ? "" : path);
  const search = (more: Record<string, string | undefined>): void => set({ cursor: undefined, open: undefined, ...more });
  const records = page.data?.records ?? [];
  const next = page.data?.next ?? (page.data?.next_offset === undefined ? undefined : String(page.data.next_offset));
  const isEnd = key !== "" || page.data?.at_end === true || next === undefined;
  return (
    <>
      <div class="bar">
        <Field label="Key" value={key} search onSet={(value) => search({ key: value, live: undefined })} placeholder="exactly" />
        <Choice label="Partition" value={partition} onSet={(value) => search({ partition: value, from: /^\d+$/.test(from) && !value ? undefined : from })}
          choices={[["", topic.partitions > PARTITIONS_MAX ? `first ${PARTITIONS_MAX}` : "all"], ...topic.owners.slice(0, 10000).map((each): [string, string] => [String(each.partition), String(each.partition)])]} />
        <Field label={partition ? "From (newest, offset, age, time)" : "From (newest, earliest, age, time)"} value={from} onSet={(value) => search({ from: value.trim() || undefined, key: undefined })} placeholder="newest, 15m, 2026-11-29T12:00Z" />
        <Field label="Tags" value={tags} onSet={(value) => search({ tags: value })} />
        <Field label="Filter" value={filter} onSet={(value) => search({ filter: value })} placeholder="region = 'eu'" />
        <button type="button" class="main" aria-pressed={live !== ""} onClick={() => search({ live: live ? undefined : "1", key: undefined })}>{live ? "Stop" : "Live"}</button>
      </div>
      {topic.partitions > PARTITIONS_MAX && !partition && <p class="note">{`Only the first ${PARTITIONS_MAX} of ${count(topic.partitions)} partitions are shown: choose one for the others.`}</p>}
      {live ? <Tail key={JSON.stringify([topic.name, partition, tags, filter])} topic={topic} partition={partition} tags={tags} filter={filter} open={open} /> : (
        <>
          <Trouble error={page.error} />
          {page.data && <Rows topic={topic.name} records={records} open={open} empty={key ? `No record has the key ${visible(key)}.` : newest ? (isEnd ? "No records are here." : "Nothing that was looked at passes. Older records may.") : <>{`No records from ${visible(from)} on. `}<a href={link(["topics", topic.name])}>Show the newest ones</a></>} />}
          {page.data?.rest && page.data.rest.length > 0 && <p class="note">The search has stopped before its end: narrow it, or use ledgermq message find.</p>}
          <div class="bar">
            {cursor && <button type="button" onClick={() => search({})}>{newest ? "Newest" : "Back to the beginning"}</button>}
            {!isEnd && <button type="button" onClick={() => set({ cursor: next, open: undefined })}>{newest ? `Older ${LIMIT}` : `Next ${LIMIT}`}</button>}
            <button type="button" onClick={page.reload}>Reload</button>
            {!key && !isKept() && <a href={downloadOf(topic, params)} download>{`Download ${newest ? "all" : "from here on"}, 100,000 at most`}</a>}
          </div>
        </>
      )}
    </>
  );
}

function Rows({ topic, records, open, empty }: { topic: string; records: RecordOut[]; open: string; empty: JSX.Element | string }): JSX.Element {
  const columns: Column<RecordOut>[] = [
    { name: "Time", show: (record) => <When at={record.timestamp ?? (record.timestamp_us === undefined ? null : `${record.timestamp_us} µs`)} /> },
    { name: "Partition", right: true, show: (record) => String(record.partition) },
    { name: "Offset", right: true, show: (record) => <button type="button" class="plain" data-row aria-expanded={open === idOf(record)} onClick={() => set({ open: open === idOf(record) ? undefined : idOf(record) })}>{String(record.offset)}</button> },
    { name: "Key", show: (record) => <code>{oneLine(keyText(record), 30)}</code> },
    { name: "Value", show: (record) => (record.value === null ? <span class="dim">null</span> : <code>{oneLine(valueText(record), 120)}</code>) },
    { name: "Tag", show: (record) => (record.tag ? oneLine(record.tag, 40) : "") },
  ];
  return <Table label="Records" rows={records} columns={columns} keyOf={idOf} empty={empty}
    below={(record) => (open === idOf(record) ? <Panel topic={topic} record={record} /> : null)} />;
}

function Panel({ topic, record }: { topic: string; record: RecordOut }): JSX.Element {
  const key = keyText(record);
  return (
    <div class="panel">
      <Value record={record} />
      {key && <section aria-label="Key"><strong>Key</strong><pre tabIndex={0}>{visible(key)}</pre></section>}
      <Headers record={record} />
      <p class="dim">{`${visible(topic)}:${record.partition}:${record.offset} `}
        <a href={link(["topics", topic, "messages"], { partition: record.partition, from: record.offset, open: idOf(record) })}>Link to it</a>
        {typeof record.key === "string" && <>{" · "}<a href={link(["topics", topic, "messages"], { key: record.key })}>All with this key</a></>}
        {" · "}<a href={traceOf(`${topic}:${idOf(record)}`)}>Trace</a>
      </p>
    </div>
  );
}

// The live tail: new rows at the top, at most LIVE_MAX; it waits while the pointer is in the table. A hidden tab has no
// stream: a browser has six connections for all tabs. Shown again it goes on where it was, or after a minute at the end.
function Tail(props: { topic: TopicDetails; partition: string; tags: string; filter: string; open: string }): JSX.Element {
  const { topic, partition, tags, filter, open } = props;
  const [rows, setRows] = useState<RecordOut[]>([]);
  const [state, setState] = useState("connects …");
  const [skipped, setSkipped] = useState(0);
  const [missed, setMissed] = useState(false);
  const [error, setError] = useState<Error | null>(null);
  const paused = useRef(false);
  useEffect(() => {
    const waiting: RecordOut[] = [];
    let cursor = "";
    let hasEnded = false;
    let stream = new AbortController();
    let shown = (): void => {};
    const look = (): void => {
      if (document.hidden || hasEnded) stream.abort();
      if (!document.hidden || hasEnded) shown();
    };
    document.addEventListener("visibilitychange", look);
    const timer = setInterval(() => {
      if (!waiting.length || paused.current || document.hidden) return;
      const fresh = waiting.splice(0).reverse();
      setRows((now) => [...fresh, ...now].slice(0, LIVE_MAX));
    }, 250);
    const follow = async (): Promise<void> => {
      for await (const event of events(`/v1/topics/${part(topic.name)}/events${query({ partitions: chosen(topic, partition), tags, filter, gap: "skip" })}`, cursor, stream.signal)) {
        if (event.id) cursor = event.id;
        if (event.event === "problem") throw new Problem(0, "", String((JSON.parse(event.data) as { detail?: unknown }).detail));
        if (!event.data || event.event) continue;
        waiting.push(JSON.parse(event.data) as RecordOut);
        if (waiting.length > LIVE_MAX) setSkipped((now) => now + waiting.splice(0, waiting.length - LIVE_MAX).length);
      }
    };
    const run = async (): Promise<void> => {
      while (!hasEnded) {
        const began = Date.now();
        await new Promise<void>((done) => ((shown = done), look()));
        if (hasEnded) return;
        if (cursor && Date.now() - began > HIDDEN_MS_MAX) (cursor = ""), setMissed(true);
        stream = new AbortController();
        setState("live");
        try {
          await follow();
        } catch (caught) {
          if (hasEnded || signedOut.value) return;
          const isFinal = caught instanceof Problem ? caught.status >= 400 && caught.status < 500 && caught.status !== 429 : !stream.signal.aborted;
          if (isFinal) return stream.abort(), setState("has ended"), setError(caught as Error);
        }
        if (hasEnded) return;
        if (stream.signal.aborted) {
          if (!cursor) setMissed(true);
          continue;
        }
        setState("connects again …");
        await new Promise((done) => setTimeout(done, 2000));
      }
    };
    void run();
    return () => ((hasEnded = true), look(), clearInterval(timer), document.removeEventListener("visibilitychange", look));
  }, []);
  return (
    <div onPointerEnter={(event) => event.pointerType === "mouse" && (paused.current = true)} onPointerLeave={() => (paused.current = false)}>
      <p role="status">{`${state === "live" ? "Live: new records come in at the top" : `The stream ${state}`}${skipped ? `; ${count(skipped)} skipped` : ""}${missed ? "; records that came while this tab was hidden are left out" : ""}.${error ? "" : " It waits while the pointer is in the table."}`}</p>
      <Trouble error={error} />
      <Rows topic={topic.name} records={rows} open={open} empty="No record has come yet." />
    </div>
  );
}
