// Parts that pages are made of. Children are always strings or elements made here, never what a server has sent.
import { type ComponentChildren, type JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Problem, get, now, session } from "./api";
import { ago, utc, visible } from "./show";

export interface Loaded<T> { data: T | null; error: Problem | Error | null; reload: () => void; loading: boolean }

// Loads one path, again when it changes, and every `everyMs` while the page is looked at. "" loads nothing. A load that
// takes longer than `everyMs` is waited for: where brokers are slow, the page would otherwise never show anything.
export function useGet<T>(path: string, everyMs = 0): Loaded<T> {
  const [state, setState] = useState<{ path: string; data: T | null; error: Error | null }>({ path: "", data: null, error: null });
  const [turn, setTurn] = useState(0);
  const busy = useRef(false);
  useEffect(() => {
    if (!path) return setState({ path, data: null, error: null });
    const stop = new AbortController();
    busy.current = true;
    get<T>(path, stop.signal).then(
      (data) => setState({ path, data, error: null }),
      (error: Error) => {
        if (!stop.signal.aborted) setState((now) => ({ path, data: now.path === path ? now.data : null, error }));
      },
    ).finally(() => stop.signal.aborted || (busy.current = false));
    return () => stop.abort();
  }, [path, turn]);
  useEffect(() => {
    if (!everyMs || !path) return;
    const timer = setInterval(() => document.hidden || busy.current || setTurn((now) => now + 1), everyMs);
    return () => clearInterval(timer);
  }, [path, everyMs]);
  const here = state.path === path;
  return { data: here ? state.data : null, error: here ? state.error : null, reload: () => setTurn((now) => now + 1), loading: !!path && !here };
}

// What the caller may do, in one call. `asked`: operation:name.
export function useRights(asked: string[]): Record<string, boolean> {
  const wanted = session.value?.write ? asked.join(",") : "";
  const found = useGet<{ rights: Record<string, boolean> }>(wanted && `/console/rights?ask=${encodeURIComponent(wanted)}`);
  return found.data?.rights ?? {};
}

export function Trouble({ error }: { error: Error | null }): JSX.Element | null {
  if (!error) return null;
  const denied = error instanceof Problem && error.status === 403;
  return <p class={denied ? "note" : "note bad"} role="status">{visible(error.message)}</p>;
}

export function When({ at }: { at: string | number | null | undefined }): JSX.Element {
  const time = at === null || at === undefined || at === 0 ? null : new Date(at);
  if (!time || Number.isNaN(time.getTime())) return <span class="dim">{at ? visible(String(at)) : "–"}</span>;
  return <time dateTime={time.toISOString()} title={utc(time)}>{ago(time, now())}</time>;
}

export interface Column<T> { name: string; unseen?: boolean; right?: boolean; show: (row: T) => ComponentChildren; sort?: (row: T) => string | number }

export function Table<T>(props: {
  rows: T[]; columns: Column<T>[]; label: string; keyOf: (row: T) => string; empty?: ComponentChildren;
  below?: (row: T) => ComponentChildren; sorted?: string; onSort?: (by: string) => void;
}): JSX.Element {
  const { rows, columns, label, keyOf, empty, below, sorted = "", onSort } = props;
  if (!rows.length) return <p class="empty">{empty ?? "Nothing is here."}</p>;
  const down = sorted.startsWith("-");
  const by = sorted ? columns.find((column) => column.name === sorted.replace(/^-/, "")) : undefined;
  const shown = by?.sort ? [...rows].sort((a, b) => compare(by.sort!(a), by.sort!(b)) * (down ? -1 : 1)) : rows;
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label={label}>
      <table>
        <thead><tr>{columns.map((column) => (
          <th key={column.name} scope="col" class={column.right ? "right" : ""} aria-sort={column === by ? (down ? "descending" : "ascending") : undefined}>
            {column.sort && onSort
              ? <button type="button" class="plain" onClick={() => onSort(column === by && !down ? `-${column.name}` : column.name)}>
                  {column.name}{column === by ? (down ? " ↓" : " ↑") : ""}</button>
              : column.unseen ? <span class="unseen">{column.name}</span> : column.name}
          </th>
        ))}</tr></thead>
        <tbody>{shown.map((row) => {
          const more = below?.(row);
          return [
            <tr key={keyOf(row)}>{columns.map((column) => <td key={column.name} class={column.right ? "right" : ""}>{column.show(row)}</td>)}</tr>,
            more ? <tr key={`${keyOf(row)} below`} class="below"><td colSpan={columns.length}>{more}</td></tr> : null,
          ];
        })}</tbody>
      </table>
    </div>
  );
}

function compare(a: string | number, b: string | number): number {
  return a < b ? -1 : a > b ? 1 : 0;
}

export function Facts({ rows }: { rows: [string, ComponentChildren][] }): JSX.Element {
  return <dl class="facts">{rows.map(([name, value]) => <div key={name}><dt>{name}</dt><dd>{value}</dd></div>)}</dl>;
}

// Goes to the page's search. Where the page is still loading, its search takes the focus when it appears, unless `forget`
// comes before.
let isSought = false;
export function search(): void {
  const found = document.querySelector<HTMLElement>("[data-search]");
  isSought = !found;
  found?.focus();
}
export const forget = (): void => void (isSought = false);

export function Field(props: { label: string; value: string; onSet: (value: string) => void; search?: boolean; placeholder?: string; type?: "text" | "number"; wide?: boolean; live?: boolean }): JSX.Element {
  const { label, value, onSet, search, placeholder, type = "text", wide, live } = props;
  const [text, setText] = useState(value);
  const box = useRef<HTMLInputElement>(null);
  useEffect(() => setText(value), [value]);
  useEffect(() => {
    if (!search || !isSought) return;
    forget();
    box.current!.focus();
  }, []);
  return (
    <label class={wide ? "field wide" : "field"}><span>{label}</span>
      <input ref={box} type={type as "text"} value={text} placeholder={placeholder} spellcheck={false} autocomplete="off" data-search={search ? "" : undefined}
        onInput={(event) => (setText(event.currentTarget.value), live && onSet(event.currentTarget.value))} onChange={(event) => onSet(event.currentTarget.value)}
        onKeyDown={(event) => event.key === "Enter" && onSet(event.currentTarget.value)} />
    </label>
  );
}

export function Choice(props: { label: string; value: string; choices: [string, string][]; onSet: (value: string) => void }): JSX.Element {
  const { label, value, choices, onSet } = props;
  return (
    <label class="field"><span>{label}</span>
      <select aria-label={label} value={value} onChange={(event) => onSet(event.currentTarget.value)}>
        {choices.map(([key, text]) => <option key={key} value={key}>{text}</option>)}
      </select>
    </label>
  );
}

// A dialog for what changes something. `typed`: the name to type before it can be done.
export function Dialog(props: { title: string; onClose: () => void; children: ComponentChildren; action?: string; typed?: string; ready?: boolean; onDo?: () => Promise<void> }): JSX.Element {
  const { title, onClose, children, action, typed, ready = true, onDo } = props;
  const box = useRef<HTMLDialogElement>(null);
  const [error, setError] = useState<Error | null>(null);
  const [name, setName] = useState("");
  const [busy, setBusy] = useState(false);
  useEffect(() => box.current?.showModal(), []);
  const act = async (): Promise<void> => {
    setBusy(true);
    setError(null);
    try {
      await onDo!();
      onClose();
    } catch (caught) {
      setError(caught as Error);
    }
    setBusy(false);
  };
  return (
    <dialog ref={box} onClose={onClose} aria-label={title}>
      <h2>{title}</h2>
      {children}
      {typed && <Field label={`Type ${visible(typed)} to confirm`} value={name} onSet={setName} wide live />}
      <Trouble error={error} />
      <div class="bar end">
        <button type="button" onClick={onClose}>Close</button>
        {action && onDo && <button type="button" class={typed ? "danger" : "main"} disabled={busy || !ready || (!!typed && name !== typed)} onClick={act}>{action}</button>}
      </div>
    </dialog>
  );
}
