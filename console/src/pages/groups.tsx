import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { change, part } from "../api";
import { link, place, set } from "../place";
import { count, duration, visible } from "../show";
import { Choice, Dialog, Field, Table, Trouble, useGet, useRights } from "../ui";
import type { Lag } from "../types";

interface Group { name: string; state: string; members: number; assignor: string; epoch: number }
interface Details extends Group {
  coordinator: string;
  group_members: { member_id: string; client_id: string; topics: string[]; assigned: string[]; heartbeat_age_s: number }[];
  offsets: { topic: string; partition: number; offset: number; topic_id: number }[];
}

export function Groups(): JSX.Element {
  const { search = "", sort = "-Behind" } = place.value.params;
  const groups = useGet<{ groups: Group[] }>("/v1/groups", 10000);
  const lags = useGet<{ lags: Lag[] }>("/v1/lags?limit=1000", 5000);
  const behind = new Map<string, { records: number; stuck: number }>();
  for (const lag of lags.data?.lags ?? []) {
    const now = behind.get(lag.group) ?? { records: 0, stuck: 0 };
    behind.set(lag.group, { records: now.records + lag.records, stuck: Math.max(now.stuck, lag.stuck_s) });
  }
  const rows = (groups.data?.groups ?? []).filter((group) => group.name.includes(search));
  return (
    <>
      <h1>Groups</h1>
      <div class="bar"><Field label="Name has" value={search} onSet={(value) => set({ search: value })} search live /></div>
      <Trouble error={groups.error ?? lags.error} />
      {groups.data && <Table label="Groups" rows={rows.slice(0, 500)} keyOf={(group) => group.name} sorted={sort} onSort={(by) => set({ sort: by })}
        empty={search ? `No group has ${visible(search)} in its name.` : "There is no group that you may see."} columns={[
          { name: "Group", sort: (group) => group.name, show: (group) => <a data-row href={link(["groups", group.name])}>{visible(group.name)}</a> },
          { name: "State", sort: (group) => group.state, show: (group) => visible(group.state) },
          { name: "Members", right: true, sort: (group) => group.members, show: (group) => count(group.members) },
          { name: "Behind", right: true, sort: (group) => behind.get(group.name)?.records ?? -1, show: (group) => (behind.has(group.name) ? count(behind.get(group.name)!.records) : "–") },
          { name: "Not moved for", right: true, sort: (group) => behind.get(group.name)?.stuck ?? 0, show: (group) => (behind.get(group.name)?.stuck ? duration(behind.get(group.name)!.stuck) : "–") },
        ]} />}
      {rows.length > 500 && <p class="note">{`The first 500 of ${count(rows.length)} are shown: search by name.`}</p>}
    </>
  );
}

export function GroupPage({ name }: { name: string }): JSX.Element {
  const path = `/v1/groups/${part(name)}`;
  const group = useGet<Details>(path, 10000);
  const lag = useGet<{ lags: { topic: string; partition: number; records: number; seconds: number | null }[] }>(`${path}/lag`, 5000);
  const known = useGet<{ lags: Lag[] }>(`/v1/lags?group=${encodeURIComponent(name)}`, 10000);
  const rights = useRights([`group:${name}`]);
  const [resetting, setResetting] = useState(false);
  const found = group.data;
  const lags = new Map((lag.data?.lags ?? []).map((each) => [`${each.topic}/${each.partition}`, each]));
  const topics = [...new Set(found?.offsets.map((each) => each.topic) ?? [])];
  const total = lag.data?.lags.reduce((sum, each) => sum + each.records, 0);
  const stuck = Math.max(0, ...(known.data?.lags ?? []).map((each) => each.stuck_s));
  const holder = new Map(found?.group_members.flatMap((member) => member.assigned.map((at): [string, string] => [at, member.client_id || member.member_id])));
  return (
    <>
      <p class="trail"><a href={link(["groups"])}>Groups</a></p>
      <h1>{visible(name)}</h1>
      <Trouble error={group.error ?? lag.error} />
      {found && (
        <>
          <p role="status" class={stuck > 60 ? "note bad" : "note"}>
            {`${visible(name)} is ${total === undefined ? "…" : count(total)} behind in ${topics.map(visible).join(", ") || "no topic"}`
              + `${stuck ? `, and has not moved for ${duration(stuck)}` : ""}; ${count(found.members)} ${found.members === 1 ? "member" : "members"}, ${visible(found.state)}.`}
          </p>
          {rights[`group:${name}`] && topics.length > 0 && <div class="bar"><button type="button" onClick={() => setResetting(true)}>Reset offsets…</button></div>}
          <LagChart total={total} name={name} />
          <h2>Partitions</h2>
          <Table label="Partitions of the group" rows={found.offsets} keyOf={(each) => `${each.topic}/${each.partition}`} empty="It has committed no offsets." columns={[
            { name: "Topic", show: (each) => <a data-row href={link(["topics", each.topic])}>{visible(each.topic)}</a> },
            { name: "Partition", right: true, show: (each) => String(each.partition) },
            { name: "Committed", right: true, show: (each) => <a href={link(["topics", each.topic, "messages"], { partition: each.partition, from: each.offset })}>{count(each.offset)}</a> },
            { name: "Behind", right: true, show: (each) => { const at = lags.get(`${each.topic}/${each.partition}`); return at ? count(at.records) : "–"; } },
            { name: "Next one's age", right: true, show: (each) => { const at = lags.get(`${each.topic}/${each.partition}`); return at?.records && at.seconds !== null ? duration(at.seconds) : "–"; } },
            { name: "Member", show: (each) => visible(holder.get(`${each.topic}/${each.partition}`) ?? "") || <span class="dim">–</span> },
          ]} />
          <h2>Members</h2>
          <Table label="Members" rows={found.group_members} keyOf={(each) => each.member_id} empty="It has no members now." columns={[
            { name: "Member", show: (each) => <code class="wrap">{visible(each.member_id)}</code> },
            { name: "Client", show: (each) => visible(each.client_id) || "–" },
            { name: "Partitions", right: true, show: (each) => count(each.assigned.length) },
            { name: "Heard", right: true, show: (each) => `${duration(each.heartbeat_age_s)} ago` },
          ]} />
        </>
      )}
      {resetting && found && <Reset name={name} group={found} onClose={() => (setResetting(false), group.reload(), lag.reload())} />}
    </>
  );
}

// Lag since the page was opened; nothing of it is stored. The table below it says the same in numbers.
function LagChart({ total, name }: { total: number | undefined; name: string }): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  const series = useRef<[number[], number[]]>([[], []]);
  const plot = useRef<uPlot | null>(null);
  useEffect(() => {
    series.current = [[], []];
    const axis = { stroke: () => getComputedStyle(document.body).color, grid: { stroke: "#8883", width: 1 }, ticks: { stroke: "#8883", width: 1 } };
    const end = (): number => series.current[0].at(-1) ?? Date.now() / 1000;
    const made = new uPlot({
      width: box.current!.clientWidth, height: 150, cursor: { show: false }, legend: { show: false },
      axes: [{ ...axis, space: 90, values: (_: uPlot, times: number[]) => times.map((time) => (end() - time < 20 ? "now" : `${duration(end() - time)} ago`)) }, { ...axis, size: 64, values: (_: uPlot, values: number[]) => values.map((value) => (Number.isInteger(value) ? count(value) : "")) }],
      scales: { x: { range: () => [end() - 450, end()] }, y: { range: (_: uPlot, __: number, most: number) => [0, Math.max(4, most * 1.1)] } },
      series: [{}, { stroke: "#0d8f8f", width: 2, fill: "#0d8f8f22" }],
    }, series.current, box.current!);
    plot.current = made;
    const watch = new ResizeObserver(() => made.setSize({ width: box.current!.clientWidth, height: 150 }));
    watch.observe(box.current!);
    return () => (watch.disconnect(), made.destroy());
  }, [name]);
  useEffect(() => {
    if (total === undefined) return;
    const [times, values] = series.current;
    const add = (): void => {
      times.push(Date.now() / 1000);
      values.push(total);
      if (times.length > 90) times.shift(), values.shift();
      plot.current?.setData([times, values]);
    };
    add();
    const timer = setInterval(add, 5000);
    return () => clearInterval(timer);
  }, [total, name]);
  return <figure class="chart"><figcaption>Records behind, since the page was opened</figcaption><div ref={box} aria-hidden="true" /></figure>;
}

interface Planned { resets: { topic: string; partition: number; before: number | null; after: number }[] }

function Reset({ name, group, onClose }: { name: string; group: Details; onClose: () => void }): JSX.Element {
  const [to, setTo] = useState("earliest");
  const [place_, setPlace] = useState("");
  const [plan, setPlan] = useState<Planned | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const where = to === "place" ? place_.trim() : to;
  const look = async (): Promise<void> => {
    setError(null);
    try {
      setPlan(await change<Planned>("POST", `/v1/groups/${part(name)}/reset`, { to: /^\d+$/.test(where) ? Number(where) : where, dry_run: true }));
    } catch (caught) {
      setPlan(null);
      setError(caught as Error);
    }
  };
  // What was previewed is what is done: offsets by partition, and only where nothing was committed meanwhile.
  const act = async (): Promise<void> => {
    for (const each of plan!.resets) {
      const body = { to: each.after, topics: [each.topic], partition: each.partition, expect: [{ topic: each.topic, partition: each.partition, offset: each.before }] };
      await change("POST", `/v1/groups/${part(name)}/reset`, body);
    }
  };
  return (
    <Dialog title={`Reset ${visible(name)}`} action={plan ? "Reset" : undefined} typed={plan ? name : undefined} onDo={act} onClose={onClose}>
      {group.members > 0 && <p class="note">{`${count(group.members)} members read now: they go on from the new offsets.`}</p>}
      <div class="bar">
        <Choice label="To" value={to} onSet={(value) => (setTo(value), setPlan(null))} choices={[["earliest", "earliest"], ["latest", "latest (skips what is left)"], ["place", "age, time or offset"]]} />
        {to === "place" && <Field label="Age, time or offset" value={place_} onSet={(value) => (setPlace(value), setPlan(null))} placeholder="15m, 2026-11-29T12:00Z" live />}
        <button type="button" onClick={look} disabled={!where}>Preview</button>
      </div>
      <Trouble error={error} />
      {plan && <Table label="Preview" rows={plan.resets} keyOf={(each) => `${each.topic}/${each.partition}`} columns={[
        { name: "Topic", show: (each) => visible(each.topic) },
        { name: "Partition", right: true, show: (each) => String(each.partition) },
        { name: "Before", right: true, show: (each) => (each.before === null ? "–" : count(each.before)) },
        { name: "After", right: true, show: (each) => count(each.after) },
      ]} />}
    </Dialog>
  );
}

