import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { change, query, session } from "../api";
import { go, link, place, set } from "../place";
import { bytes, count, visible } from "../show";
import { Dialog, Field, Table, Trouble, When, useGet, useRights } from "../ui";
import type { Lag, Topic } from "../types";

export function Topics(): JSX.Element {
  const { prefix = "", after = "", sort = "" } = place.value.params;
  const topics = useGet<{ topics: Topic[]; after: string | null }>(`/v1/topics${query({ prefix, after, limit: 100 })}`);
  const loads = useGet<{ topics: { topic: string; load: number }[] }>(session.value?.cluster ? "/v1/loads" : "", 10000);
  const lags = useGet<{ lags: Lag[] }>("/v1/lags?limit=1000", 10000);
  const rights = useRights([`create:${prefix || "new"}`]);
  const [making, setMaking] = useState(false);
  const load = new Map((loads.data?.topics ?? []).map((each) => [each.topic, each.load]));
  const slowest = new Map<string, Lag>();
  for (const lag of lags.data?.lags ?? []) if (lag.records > (slowest.get(lag.topic)?.records ?? 0)) slowest.set(lag.topic, lag);
  const next = topics.data?.after;
  return (
    <>
      <h1>Topics</h1>
      <div class="bar">
        <Field label="Name begins with" value={prefix} onSet={(value) => set({ prefix: value, after: undefined })} search />
        {Object.values(rights).some(Boolean) && <button type="button" class="main" onClick={() => setMaking(true)}>New topic…</button>}
      </div>
      <Trouble error={topics.error} />
      {topics.data && <Table label="Topics" rows={topics.data.topics} keyOf={(topic) => topic.name} sorted={sort} onSort={(by) => set({ sort: by })}
        empty={prefix ? `No topic that you may see begins with ${visible(prefix)}.` : "There is no topic that you may see."} columns={[
          { name: "Name", sort: (topic) => topic.name, show: (topic) => <a data-row href={link(["topics", topic.name])}>{visible(topic.name)}</a> },
          { name: "Partitions", right: true, sort: (topic) => topic.partitions, show: (topic) => count(topic.partitions) },
          { name: "Load", right: true, sort: (topic) => load.get(topic.name) ?? 0, show: (topic) => (load.has(topic.name) ? `${bytes(load.get(topic.name)!)}/s` : "–") },
          { name: "Slowest group", sort: (topic) => slowest.get(topic.name)?.records ?? 0, show: (topic) => {
            const lag = slowest.get(topic.name);
            return lag ? <><a href={link(["groups", lag.group])}>{visible(lag.group)}</a>{` ${count(lag.records)} behind`}</> : <span class="dim">–</span>;
          } },
          { name: "Made", sort: (topic) => topic.created, show: (topic) => <When at={topic.created} /> },
        ]} />}
      <div class="bar">
        {after && <button type="button" onClick={() => history.back()}>Back</button>}
        {next && <button type="button" onClick={() => go(["topics"], { prefix, after: next, sort })}>Next 100</button>}
      </div>
      {making && <NewTopic onClose={() => setMaking(false)} />}
    </>
  );
}

function NewTopic({ onClose }: { onClose: () => void }): JSX.Element {
  const [name, setName] = useState("");
  const [partitions, setPartitions] = useState("");
  const make = async (): Promise<void> => {
    await change("POST", "/v1/topics", { name, partitions: Number(partitions) || 0 });
    go(["topics", name]);
  };
  return (
    <Dialog title="New topic" action="Create" ready={name !== ""} onDo={make} onClose={onClose}>
      <Field label="Name" value={name} onSet={setName} wide live />
      <Field label="Partitions (empty: the cluster's default)" type="number" value={partitions} onSet={setPartitions} wide live />
    </Dialog>
  );
}
