import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { change, query, part } from "../api";
import { link, place, set } from "../place";
import { count, oneLine, visible } from "../show";
import { Choice, Dialog, Field, Table, Trouble, When, useGet, useRights } from "../ui";
import type { Letter } from "../types";
import { keyText, valueText } from "./messages";
import { traceOf } from "./trace";
import { Headers, Value } from "./value";

interface Preview { count: number; letters: Letter[] }

export function LetterGroups(): JSX.Element {
  const groups = useGet<{ groups: string[] }>("/v1/dead-letters", 10000);
  return (
    <>
      <h1>Dead letters</h1>
      <Trouble error={groups.error} />
      {groups.data && <Table label="Groups with dead letters" rows={groups.data.groups} keyOf={(group) => group} empty="No group has a topic of dead letters." columns={[
        { name: "Group", show: (group) => <a data-row href={link(["letters", group])}>{visible(group)}</a> },
        { name: "Its topic", show: (group) => <a href={link(["topics", `${group}.dlq`])}>{visible(`${group}.dlq`)}</a> },
      ]} />}
    </>
  );
}

export function Letters({ group }: { group: string }): JSX.Element {
  const { error = "", topic = "", settled = "", cursor = "", open = "" } = place.value.params;
  const letters = useGet<{ letters: Letter[]; left: number; next: string | null }>(`/v1/groups/${part(group)}/dead-letters${query({ error, topic, settled: settled || undefined, cursor, limit: 50 })}`);
  const needs = [`group:${group}`, `produce:${group}.dlq`, `transaction:${group}.dlq`];
  const rights = useRights(needs);
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set());
  const [acting, setActing] = useState<"redrive" | "drop" | "">("");
  const may = needs.every((each) => rights[each]);
  const rows = letters.data?.letters ?? [];
  const waiting = rows.filter((letter) => letter.state === "waits").map((letter) => letter.place);
  const places = waiting.filter((each) => chosen.has(each));
  const toggle = (at: string): void => setChosen((now) => new Set(now.has(at) ? [...now].filter((each) => each !== at) : [...now, at]));
  const search = (more: Record<string, string | undefined>): void => (setChosen(new Set()), set({ cursor: undefined, open: undefined, ...more }));
  return (
    <>
      <p class="trail"><a href={link(["letters"])}>Dead letters</a></p>
      <h1>{visible(group)}</h1>
      <div class="bar">
        <Field label="Error has" value={error} onSet={(value) => search({ error: value })} search />
        <Field label="From topic" value={topic} onSet={(value) => search({ topic: value })} />
        <Choice label="Show" value={settled} onSet={(value) => search({ settled: value })} choices={[["", "those that wait"], ["true", "settled ones, too"]]} />
      </div>
      <Trouble error={letters.error} />
      {may && rows.length > 0 && <div class="bar">
        <button type="button" onClick={() => setChosen(new Set(places.length === waiting.length ? [] : waiting))}>{places.length === waiting.length ? "Choose none" : "Choose all here"}</button>
        <button type="button" class="main" disabled={!places.length} onClick={() => setActing("redrive")}>{`Redrive ${count(places.length)}…`}</button>
        <button type="button" class="danger" disabled={!places.length} onClick={() => setActing("drop")}>{`Drop ${count(places.length)}…`}</button>
      </div>}
      {letters.data && <Table label="Dead letters" rows={rows} keyOf={(letter) => letter.place} empty={`${visible(group)} has no dead letters here.`}
        below={(letter) => (open === letter.place ? <div class="panel">
          <section aria-label="Error"><strong>{`Last error, after ${count(letter.attempts)} attempts`}</strong><pre tabIndex={0}>{visible(letter.error)}</pre></section>
          <Value record={letter.record} /><Headers record={letter.record} />
        </div> : null)}
        columns={[
          ...(may ? [{ name: "Choose", unseen: true, show: (letter: Letter) => (letter.state === "waits" ? <input type="checkbox" aria-label={`Choose ${letter.place}`} checked={chosen.has(letter.place)} onChange={() => toggle(letter.place)} /> : null) }] : []),
          { name: "Place", show: (letter) => <button type="button" class="plain" data-row aria-expanded={open === letter.place} onClick={() => set({ open: open === letter.place ? undefined : letter.place })}>{letter.place}</button> },
          { name: "First failed", show: (letter) => <When at={letter.first_failure_ms} /> },
          { name: "Error", show: (letter) => oneLine(letter.error, 80) },
          { name: "Attempts", right: true, show: (letter) => count(letter.attempts) },
          { name: "From", show: (letter) => <a href={traceOf(letter.origin)}>{visible(letter.origin)}</a> },
          { name: "Key", show: (letter) => <code>{oneLine(keyText(letter.record), 40)}</code> },
          { name: "Value", show: (letter) => <code>{oneLine(valueText(letter.record), 60)}</code> },
          { name: "State", show: (letter) => visible(letter.state) },
        ]} />}
      <div class="bar">
        {cursor && <button type="button" onClick={() => search({})}>Back to the beginning</button>}
        {letters.data?.next && <button type="button" onClick={() => search({ cursor: letters.data!.next! })}>{`Next 50 of ${count(letters.data.left)}`}</button>}
      </div>
      {acting && <Settle group={group} how={acting} places={places} onClose={() => (setActing(""), setChosen(new Set()), letters.reload())} />}
    </>
  );
}

// The server says what would be settled; the same places are settled then, whatever has come meanwhile.
function Settle({ group, how, places, onClose }: { group: string; how: "redrive" | "drop"; places: string[]; onClose: () => void }): JSX.Element {
  const path = `/v1/groups/${part(group)}/dead-letters/${how}`;
  const [seen, setSeen] = useState<Preview | null>(null);
  const [error, setError] = useState<Error | null>(null);
  if (!seen && !error) change<Preview>("POST", path, { places, dry_run: true }).then((found) => setSeen(found), setError);
  const act = async (): Promise<void> => {
    await change("POST", path, { places: seen!.letters.map((letter) => letter.place) });
  };
  return (
    <Dialog title={how === "redrive" ? "Redrive dead letters" : "Drop dead letters"} action={seen?.count ? (how === "redrive" ? `Redrive ${count(seen.count)}` : `Drop ${count(seen.count)}`) : undefined}
      typed={how === "drop" ? group : undefined} onDo={act} onClose={onClose}>
      <p>{how === "redrive" ? `They are sent to the retry topic of ${visible(group)}, each once, and handled again.` : "They are marked as dropped: nothing handles them any more."}</p>
      <Trouble error={error} />
      {seen && <Table label="Preview" rows={seen.letters} keyOf={(letter) => letter.place} empty="None of them waits any more." columns={[
        { name: "Place", show: (letter) => letter.place },
        { name: "Error", show: (letter) => oneLine(letter.error, 60) },
        { name: "From", show: (letter) => visible(letter.origin) },
      ]} />}
    </Dialog>
  );
}
