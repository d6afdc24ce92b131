import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { change, query, session, part } from "../api";
import { go, link, place } from "../place";
import { count, duration, visible } from "../show";
import { Dialog, Field, Table, Trouble, useGet, useRights } from "../ui";
import type { Lag, TopicDetails } from "../types";
import { Messages } from "./messages";

const TABS: [string, string][] = [["messages", "Messages"], ["partitions", "Partitions"], ["settings", "Settings"], ["groups", "Groups"]];

export function TopicPage({ name }: { name: string }): JSX.Element {
  const tab = place.value.path[2] ?? "messages";
  const topic = useGet<TopicDetails>(`/v1/topics/${part(name)}`);
  const found = topic.data;
  return (
    <>
      <p class="trail"><a href={link(["topics"])}>Topics</a></p>
      <h1>{visible(name)}</h1>
      <nav class="tabs" aria-label="Of the topic">
        {TABS.map(([key, text]) => <a key={key} href={link(["topics", name, key])} aria-current={key === tab ? "page" : undefined}>{text}</a>)}
      </nav>
      <Trouble error={topic.error} />
      {found && tab === "messages" && <Messages topic={found} />}
      {found && tab === "partitions" && <Partitions topic={found} />}
      {found && tab === "settings" && <Settings topic={found} reload={topic.reload} />}
      {found && tab === "groups" && <TopicGroups name={name} />}
    </>
  );
}

interface Offsets { offsets: { partition: number; offset: number }[] }

function Partitions({ topic }: { topic: TopicDetails }): JSX.Element {
  const first = useGet<Offsets>(`/v1/topics/${part(topic.name)}/offsets?at=earliest`);
  const last = useGet<Offsets>(`/v1/topics/${part(topic.name)}/offsets?at=latest`, 5000);
  const starts = new Map(first.data?.offsets.map((each) => [each.partition, each.offset]));
  const ends = new Map(last.data?.offsets.map((each) => [each.partition, each.offset]));
  const total = [...ends].reduce((sum, [partition, end]) => sum + end - (starts.get(partition) ?? 0), 0);
  const shown = (value: number | undefined): string => (value === undefined ? "–" : count(value));
  return (
    <>
      <p>{first.data && last.data ? `${count(total)} offsets in ${count(topic.partitions)} ${topic.partitions === 1 ? "partition" : "partitions"}.` : "…"}</p>
      <Trouble error={first.error ?? last.error} />
      <Table label="Partitions" rows={topic.owners} keyOf={(each) => String(each.partition)} columns={[
        { name: "Partition", right: true, show: (each) => <a data-row href={link(["topics", topic.name, "messages"], { partition: each.partition })}>{String(each.partition)}</a> },
        { name: "First", right: true, show: (each) => shown(starts.get(each.partition)) },
        { name: "End", right: true, show: (each) => shown(ends.get(each.partition)) },
        { name: "Bundle", right: true, show: (each) => String(each.bundle) },
        { name: "Owner", show: (each) => (each.owner ? visible(each.owner) : <span class="bad">none now</span>) },
        { name: "Moves", show: (each) => (each.moving_from === null || each.moving_from === undefined ? "–" : `from bundle ${each.moving_from}`) },
      ]} />
    </>
  );
}

function Settings({ topic, reload }: { topic: TopicDetails; reload: () => void }): JSX.Element {
  const rights = useRights([`alter:${topic.name}`, `delete:${topic.name}`]);
  const [editing, setEditing] = useState<string | null>(null);
  const [deleting, setDeleting] = useState(false);
  const rows = Object.entries(topic.settings).sort();
  const id = query({ topic_id: topic.topic_id });
  return (
    <>
      <p>{rows.length ? "These settings were set; all others have their defaults." : "No setting was set: all have their defaults."}</p>
      {rows.length > 0 && <Table label="Settings" rows={rows} keyOf={([name]) => name} columns={[
        { name: "Setting", show: ([name]) => <code>{visible(name)}</code> },
        { name: "Value", show: ([, value]) => <code class="wrap">{visible(value)}</code> },
        { name: "Action", unseen: true, show: ([name]) => (rights[`alter:${topic.name}`] ? <button type="button" onClick={() => setEditing(name)}>Change…</button> : null) },
      ]} />}
      <div class="bar">
        {rights[`alter:${topic.name}`] && <button type="button" onClick={() => setEditing("")}>Set another…</button>}
        {rights[`delete:${topic.name}`] && <button type="button" class="danger" onClick={() => setDeleting(true)}>Delete topic…</button>}
      </div>
      {editing !== null && <Setting topic={topic} name={editing} onClose={() => (setEditing(null), reload())} />}
      {deleting && <Dialog title={`Delete ${visible(topic.name)}`} action="Delete" typed={topic.name} onClose={() => setDeleting(false)}
        onDo={async () => { await change("DELETE", `/v1/topics/${part(topic.name)}${id}`); go(["topics"]); }}>
        <p>{`The topic with its ${count(topic.partitions)} partitions and all its records is deleted. Within the cluster's grace it can be brought back: ledgermq topic undelete ${visible(topic.name)}`}</p>
      </Dialog>}
    </>
  );
}

function Setting({ topic, name, onClose }: { topic: TopicDetails; name: string; onClose: () => void }): JSX.Element {
  const [key, setKey] = useState(name);
  const [value, setValue] = useState(topic.settings[name] ?? "");
  const path = `/v1/topics/${part(topic.name)}${query({ topic_id: topic.topic_id })}`;
  return (
    <Dialog title={name ? `Change ${visible(name)}` : "Set a setting"} action={value === "" ? "Back to the default" : "Set"} ready={key !== ""} onClose={onClose}
      onDo={async () => { await change("PATCH", path, value === "" ? { unset: [key] } : { settings: { [key]: value } }); }}>
      {!name && <Field label="Setting, like retention.ms" value={key} onSet={setKey} wide live />}
      <Field label="Value (empty: the default)" value={value} onSet={setValue} wide live />
    </Dialog>
  );
}

function TopicGroups({ name }: { name: string }): JSX.Element {
  const lags = useGet<{ lags: Lag[] }>(`/v1/lags${query({ topic: name, limit: 1000 })}`, 5000);
  return (
    <>
      <Trouble error={lags.error} />
      {lags.data && <Table label="Groups of the topic" rows={lags.data.lags} keyOf={(lag) => lag.group}
        empty={session.value?.cluster ? "No group has committed offsets of this topic." : "No group that you may see has committed offsets of this topic."} columns={[
          { name: "Group", show: (lag) => <a data-row href={link(["groups", lag.group])}>{visible(lag.group)}</a> },
          { name: "Behind", right: true, show: (lag) => count(lag.records) },
          { name: "Not moved for", right: true, show: (lag) => (lag.stuck_s ? duration(lag.stuck_s) : "–") },
          { name: "Partitions", right: true, show: (lag) => count(lag.partitions) },
          { name: "Members", right: true, show: (lag) => count(lag.members) },
        ]} />}
    </>
  );
}
