import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { type Tree, readTree } from "../json";
import { bytesOf, count, hex, visible } from "../show";
import type { Header, RecordOut } from "../types";

const TEXT_MAX = 64 * 1024;
const HEX_MAX = 16 * 1024;

// Shows one record's value as a tree, as text, or in hexadecimal.
export function Value({ record }: { record: RecordOut }): JSX.Element {
  const data = useMemo(() => bytesOf(record.value, record.value_base64), [record]);
  const text = typeof record.value === "string" ? record.value : null;
  const tree = useMemo(() => (text === null ? null : readTree(text)), [text]);
  const kinds = [...(tree ? ["Tree"] : []), ...(text === null ? [] : ["Text"]), ...(data ? ["Hex"] : [])];
  const [chosen, setChosen] = useState("");
  const kind = kinds.includes(chosen) ? chosen : kinds[0];
  if (!data) return <p class="dim">No value: it deletes its key in a compacted topic.</p>;
  return (
    <section aria-label="Value">
      <div class="bar tight">
        <strong>{`Value, ${count(data.length)} bytes`}</strong>
        {kinds.map((each) => <button key={each} type="button" class="chip" aria-pressed={each === kind} onClick={() => setChosen(each)}>{each}</button>)}
        {text !== null && <button type="button" class="chip" onClick={() => navigator.clipboard.writeText(text)}>Copy</button>}
      </div>
      {kind === "Tree" && tree && <div class="tree"><Node tree={tree} name="" open /></div>}
      {kind === "Text" && <pre tabIndex={0}>{visible(text!.slice(0, TEXT_MAX))}{text!.length > TEXT_MAX ? `\n… ${count(text!.length - TEXT_MAX)} characters more` : ""}</pre>}
      {kind === "Hex" && <pre tabIndex={0}>{hex(data, HEX_MAX)}{data.length > HEX_MAX ? `\n… ${count(data.length - HEX_MAX)} bytes more` : ""}</pre>}
    </section>
  );
}

function Node({ tree, name, open = false }: { tree: Tree; name: string; open?: boolean }): JSX.Element {
  const label = name ? <span class="name">{`${visible(name)}: `}</span> : null;
  if (tree.kind === "text") return <div>{label}<span class="text">{`"${visible(tree.text)}"`}</span></div>;
  if (tree.kind === "word") return <div>{label}<span class="word">{tree.text}</span></div>;
  const size = tree.kind === "object" ? `{${tree.items.length}}` : `[${tree.items.length}]`;
  return (
    <details open={open}>
      <summary>{label}<span class="dim">{size}</span></summary>
      {tree.kind === "object" ? tree.items.map(([key, each], at) => <Node key={at} tree={each} name={key || "(empty)"} open={open && tree.items.length < 20} />)
        : tree.items.map((each, at) => <Node key={at} tree={each} name={String(at)} />)}
    </details>
  );
}

export function headerText(header: Header): string {
  if (typeof header.value === "string") return header.value;
  const data = bytesOf(null, header.value_base64);
  return data ? hex(data, 64) : "no value";
}

export function Headers({ record }: { record: RecordOut }): JSX.Element | null {
  if (!record.headers?.length) return null;
  return (
    <section aria-label="Headers">
      <strong>Headers</strong>
      <dl class="facts">{record.headers.map((header, at) => <div key={at}><dt>{visible(header.key)}</dt><dd class="wrap">{visible(headerText(header))}</dd></div>)}</dl>
    </section>
  );
}
