import type { JSX } from "preact";
import { session } from "../api";
import { link } from "../place";
import { bytes, count, duration, visible } from "../show";
import { Facts, Table, Trouble, When, useGet } from "../ui";
import type { Broker, Cluster, Lag } from "../types";

export function Overview(): JSX.Element {
  const cluster = useGet<Cluster>("/v1/cluster", 5000);
  const brokers = useGet<{ brokers: Broker[] }>(session.value?.cluster ? "/v1/brokers" : "", 5000);
  const lags = useGet<{ lags: Lag[] }>("/v1/lags?limit=1000", 10000);
  const found = cluster.data;
  if (!found) return <><h1>Overview</h1><Trouble error={cluster.error} /></>;
  const troubled = found.bundles.filter((bundle) => bundle.trouble || !bundle.owner);
  const alive = found.brokers.filter((broker) => broker.alive);
  const well = !found.problems.length && !troubled.length;
  const rows: Broker[] = brokers.data?.brokers ?? found.brokers.map((broker) => ({
    ...broker, version: "", started: null, load: 0, memory_bytes: null, settings: {}, numbers: {}, trouble: "",
    bundles: found.bundles.filter((bundle) => bundle.owner === broker.address).map((bundle) => bundle.bundle),
  }));
  const slow = [...(lags.data?.lags ?? [])].filter((lag) => lag.records).sort((a, b) => b.records - a.records).slice(0, 8);
  return (
    <>
      <h1>Overview</h1>
      <p class={well ? "note good" : "note bad"} role="status">
        {well ? `The cluster is well: ${count(alive.length)} ${alive.length === 1 ? "broker serves" : "brokers serve"} ${count(found.bundles.length)} bundles.`
          : `The cluster needs a look: ${count(found.problems.length + troubled.length)} ${found.problems.length + troubled.length === 1 ? "problem" : "problems"}.`}
      </p>
      {found.problems.map((problem) => <p key={problem} class="note bad">{visible(problem)}</p>)}
      {troubled.map((bundle) => <p key={bundle.bundle} class="note bad">{`Bundle ${bundle.bundle}: ${visible(bundle.trouble || "no broker serves it now")}`}</p>)}
      <Facts rows={[
        ["Load", `${bytes(found.bundles.reduce((sum, bundle) => sum + bundle.load, 0))}/s`],
        ["Brokers", `${count(alive.length)} of ${count(found.brokers.length)}`],
        ["Bundles", count(found.bundles.length)],
        ["Release", found.version],
      ]} />
      <h2>Brokers</h2>
      <Trouble error={brokers.error} />
      <Table label="Brokers" rows={rows} keyOf={(broker) => broker.id} columns={[
        { name: "Address", show: (broker) => visible(broker.address) },
        { name: "State", show: (broker) => <span class={broker.alive && !broker.trouble ? "" : "bad"}>{broker.trouble ? visible(broker.trouble) : !broker.alive ? "gone" : broker.draining ? "draining" : "serves"}</span> },
        { name: "Bundles", right: true, show: (broker) => count(broker.bundles.length) },
        { name: "Load", right: true, show: (broker) => `${bytes(broker.load)}/s` },
        { name: "Memory", right: true, show: (broker) => (broker.memory_bytes === null ? "–" : bytes(broker.memory_bytes)) },
        { name: "Release", show: (broker) => visible(broker.version) || "–" },
        { name: "Started", show: (broker) => <When at={broker.started} /> },
      ]} />
      <h2>Groups farthest behind</h2>
      <Trouble error={lags.error} />
      <Table label="Groups farthest behind" rows={slow} keyOf={(lag) => `${lag.group}/${lag.topic}`} empty="No group is behind." columns={[
        { name: "Group", show: (lag) => <a data-row href={link(["groups", lag.group])}>{visible(lag.group)}</a> },
        { name: "Topic", show: (lag) => <a href={link(["topics", lag.topic])}>{visible(lag.topic)}</a> },
        { name: "Behind", right: true, show: (lag) => count(lag.records) },
        { name: "Not moved for", right: true, show: (lag) => (lag.stuck_s ? duration(lag.stuck_s) : "–") },
      ]} />
    </>
  );
}
