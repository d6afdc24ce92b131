import type { JSX } from "preact";
import { query } from "../api";
import { go, link, place, set } from "../place";
import { bytes, count, duration, visible } from "../show";
import { Table, Trouble, When, useGet } from "../ui";

interface LakeTable {
  topic: string; format: string; folder: string; is_current: boolean; version: number | null; changed: string | null; files: number; rows: number; size_bytes: number;
  missing: number; behind_s: number; waits_for: string; held_bytes: number; foreign_objects: number; stopped: number; trouble: string;
}

// One sentence: how the table stands, the worst first.
function state(table: LakeTable): { text: string; bad: boolean } {
  if (table.version === null && table.trouble) return { text: table.trouble, bad: true };
  if (table.stopped) return { text: `stands still in ${count(table.stopped)} partitions: ${table.trouble}`, bad: true };
  if (table.missing) return { text: `${count(table.missing)} records behind${table.behind_s >= 1 ? `, for ${duration(table.behind_s)}` : ""}${table.waits_for ? `: ${table.waits_for}` : ""}`, bad: table.behind_s >= 3600 };
  if (!table.is_current) return { text: "is replaced by its next version", bad: false };
  return { text: table.version === null ? "has no version yet" : "has all that is in Parquet files", bad: false };
}

export function Lake(): JSX.Element {
  const { after = "", sort = "" } = place.value.params;
  const found = useGet<{ tables: LakeTable[]; after: string | null }>(`/v1/tables${query({ after, limit: 50 })}`, 15000);
  const rows = found.data?.tables ?? [];
  return (
    <>
      <h1>Lake</h1>
      <p>Tables of topics, which Spark, DuckDB and others read from the store. Records come into Parquet files first, and then into the table.</p>
      <Trouble error={found.error} />
      {found.data && <Table label="Tables" rows={rows} keyOf={(table) => table.topic} sorted={sort} onSort={(by) => set({ sort: by })} empty={after ? "No table comes after this one." : "No topic has a table: the setting table.format=delta gives it one."} columns={[
        { name: "Topic", sort: (table) => table.topic, show: (table) => <a data-row href={link(["topics", table.topic])} title={visible(table.folder)}>{visible(table.topic)}</a> },
        { name: "State", sort: (table) => table.missing, show: (table) => <span class={state(table).bad ? "told bad" : "told"}>{visible(state(table).text)}</span> },
        { name: "Format", show: (table) => visible(table.format) || "–" },
        { name: "Version", right: true, sort: (table) => table.version ?? -1, show: (table) => (table.version === null ? "–" : count(table.version)) },
        { name: "Changed", sort: (table) => table.changed ?? "", show: (table) => <When at={table.changed} /> },
        { name: "Records", right: true, sort: (table) => table.rows, show: (table) => count(table.rows) },
        { name: "Files", right: true, sort: (table) => table.files, show: (table) => count(table.files) },
        { name: "Size", right: true, sort: (table) => table.size_bytes, show: (table) => bytes(table.size_bytes) },
        { name: "Held back", right: true, sort: (table) => table.held_bytes, show: (table) => (table.held_bytes ? bytes(table.held_bytes) : "–") },
        { name: "Foreign", right: true, sort: (table) => table.foreign_objects, show: (table) => (table.foreign_objects ? <span class="bad">{count(table.foreign_objects)}</span> : "–") },
      ]} />}
      <div class="bar">
        {after && <button type="button" onClick={() => history.back()}>Back</button>}
        {found.data?.after && <button type="button" onClick={() => go(["lake"], { after: found.data!.after!, sort })}>Next 50</button>}
      </div>
      <p class="dim">Held back: files below log starts that stay because a version names them. Each partition, rebuild and drop: ledgermq table --help</p>
    </>
  );
}
