import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { change, get, query, part } from "../api";
import { link, place, set } from "../place";
import { bytes, count, visible } from "../show";
import { Choice, Dialog, Field, Table, Trouble, When, useGet, useRights } from "../ui";

interface Connection { broker: string; id: string; address: string; principal: string; client_id: string; client: string; since: string; last: string; calls: number; calls_now: number; produces: string[]; reads: string[] }

export function Connections(): JSX.Element {
  const { search = "", sort = "Principal" } = place.value.params;
  const found = useGet<{ connections: Connection[] }>("/v1/connections", 5000);
  const all = found.data?.connections ?? [];
  const rows = all.filter((each) => [each.principal, each.address, each.client_id, each.client, ...each.produces, ...each.reads].some((text) => text.includes(search)));
  const topics = (names: string[]): JSX.Element => <>{names.map((name, at) => <span key={name}>{at ? ", " : ""}<a href={link(["topics", name])}>{visible(name)}</a></span>)}{names.length ? "" : "–"}</>;
  return (
    <>
      <h1>Connections</h1>
      <p>Callers of the brokers, for five minutes after their last call. Callers over HTTP have the gateway's address; addresses of Kafka clients begin with kafka:.</p>
      <div class="bar"><Field label="Any column has" value={search} onSet={(value) => set({ search: value })} search live /></div>
      <Trouble error={found.error} />
      {found.data && <Table label="Connections" rows={rows.slice(0, 500)} keyOf={(each) => `${each.broker} ${each.id}`} sorted={sort} onSort={(by) => set({ sort: by })} empty="Nothing is connected." columns={[
        { name: "Principal", sort: (each) => each.principal, show: (each) => visible(each.principal) },
        { name: "Address", sort: (each) => each.address, show: (each) => visible(each.address) },
        { name: "Client", sort: (each) => each.client, show: (each) => visible([each.client_id, each.client.split(" ")[0]].filter(Boolean).join(" · ")) },
        { name: "Writes", show: (each) => topics(each.produces) },
        { name: "Reads", show: (each) => topics(each.reads) },
        { name: "Calls", right: true, sort: (each) => each.calls, show: (each) => count(each.calls) },
        { name: "Now", right: true, sort: (each) => each.calls_now, show: (each) => count(each.calls_now) },
        { name: "Last", sort: (each) => each.last, show: (each) => <When at={each.last} /> },
        { name: "Broker", sort: (each) => each.broker, show: (each) => visible(each.broker) },
      ]} />}
      {rows.length > 500 && <p class="note">{`The first 500 of ${count(rows.length)} are shown: search.`}</p>}
    </>
  );
}

interface Delayed { topic: string | null; partition: number; due: string; size_bytes: number; handle: string | null }

export function Timed(): JSX.Element {
  const { topic = "" } = place.value.params;
  const found = useGet<{ records: Delayed[]; left: number; unanswered: number[] }>(`/v1/delayed${query({ topic, limit: 200 })}`, 10000);
  const rights = useRights(topic ? [`produce:${topic}`] : []);
  const [recalling, setRecalling] = useState<Delayed | null>(null);
  const [said, setSaid] = useState("");
  return (
    <>
      <h1>Timed messages</h1>
      <div class="bar"><Field label="Topic" value={topic} onSet={(value) => set({ topic: value })} search /></div>
      <Trouble error={found.error} />
      {said && <p class="note" role="status">{said}</p>}
      {found.data && <Table label="Timed messages" rows={found.data.records} keyOf={(each) => each.handle ?? `${each.topic}/${each.partition}/${each.due}`} empty="No message waits until it is due." columns={[
        { name: "Due", show: (each) => <When at={each.due} /> },
        { name: "Topic", show: (each) => (each.topic ? <a data-row href={link(["topics", each.topic])}>{visible(each.topic)}</a> : <span class="dim">deleted</span>) },
        { name: "Partition", right: true, show: (each) => String(each.partition) },
        { name: "Size", right: true, show: (each) => bytes(each.size_bytes) },
        { name: "Action", unseen: true, show: (each) => (each.handle && rights[`produce:${topic}`] ? <button type="button" onClick={() => setRecalling(each)}>Recall…</button> : null) },
      ]} />}
      {found.data && found.data.left > 0 && <p class="note">{`${count(found.data.left)} more are due later.`}</p>}
      {found.data && found.data.unanswered.length > 0 && <p class="note bad">{`The bundles ${found.data.unanswered.join(", ")} do not answer: theirs are missing.`}</p>}
      {recalling && <Dialog title="Recall the message" action="Recall" onClose={() => (setRecalling(null), found.reload())}
        onDo={async () => setSaid({ recalled: "It is recalled: nothing delivers it.", too_late: "It was too late: it is delivered.", forgotten: "Nothing is known of it any more." }[(await change<{ outcome: string }>("DELETE", `/v1/delayed/${part(recalling.handle!)}`))!.outcome] ?? "")}>
        <p>{`It is due ${recalling.due} in ${visible(recalling.topic ?? "")}, and is never delivered then.`}</p>
      </Dialog>}
    </>
  );
}

interface Transaction { transactional_id: string; kind: string; state: string; epoch: number; number: number; complete: boolean; missing: number[]; trouble: string; changed_ms: number; timeout_ms: number }

export function Transactions(): JSX.Element {
  const { all = "", search = "" } = place.value.params;
  const found = useGet<{ transactions: Transaction[]; unanswered: number[] }>(`/v1/transactions${query({ all: all || undefined })}`, 10000);
  const rows = (found.data?.transactions ?? []).filter((each) => each.transactional_id.includes(search));
  return (
    <>
      <h1>Transactions</h1>
      <div class="bar">
        <Field label="Id has" value={search} onSet={(value) => set({ search: value })} search live />
        <Choice label="Show" value={all} onSet={(value) => set({ all: value })} choices={[["", "open and incomplete ones"], ["true", "all"]]} />
      </div>
      <Trouble error={found.error} />
      {found.data && <Table label="Transactions" rows={rows.slice(0, 500)} keyOf={(each) => each.transactional_id} empty="No transaction is open." columns={[
        { name: "Id", show: (each) => visible(each.transactional_id) },
        { name: "Kind", show: (each) => visible(each.kind.replace("_", " ")) },
        { name: "State", show: (each) => `${visible(each.state)}${each.complete ? "" : ", not complete"}` },
        { name: "Changed", show: (each) => <When at={each.changed_ms} /> },
        { name: "Number", right: true, show: (each) => `${each.epoch}.${each.number}` },
        { name: "Why", show: (each) => visible(each.trouble) },
      ]} />}
      {found.data && found.data.unanswered.length > 0 && <p class="note bad">{`${count(found.data.unanswered.length)} coordinators do not answer: theirs are missing.`}</p>}
      <p class="dim">Commit, abort and forget are commands: ledgermq transaction --help</p>
    </>
  );
}

interface Rule { id: string; principal: string; operations: string[]; name: string; deny: boolean; created: string | null; created_by: string; trouble: string }
interface Token { token_id: string; user: string; groups: string[]; created: string; expires: string | null; created_by: string }
interface Quota { principal: string; client_id: string; limits: Record<string, number>; trouble: string }
interface Decision { allowed: boolean; why: string; principal: string }

export function Access(): JSX.Element {
  const rules = useGet<{ rules: Rule[] }>("/v1/access/rules");
  const tokens = useGet<{ tokens: Token[] }>("/v1/access/tokens");
  const quotas = useGet<{ quotas: Quota[] }>("/v1/quotas");
  const [asked, setAsked] = useState({ principal: "", operation: "consume", name: "" });
  const [said, setSaid] = useState<Decision | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const ask = (): void => void get<Decision>(`/v1/access/test${query(asked)}`).then((found) => (setSaid(found), setError(null)), (caught: Error) => (setSaid(null), setError(caught)));
  return (
    <>
      <h1>Access and quotas</h1>
      <p>This page changes nothing: rules, tokens and quotas are changed by ledgermq acl, token and quota, or over HTTP with a token.</p>
      <h2>What may a principal do?</h2>
      <div class="bar">
        <Field label="Principal (empty: you)" value={asked.principal} onSet={(principal) => setAsked({ ...asked, principal })} placeholder="user:alice" live />
        <Choice label="Operation" value={asked.operation} onSet={(operation) => setAsked({ ...asked, operation })} choices={["produce", "consume", "describe", "create", "alter", "delete", "group", "transaction", "cluster"].map((each): [string, string] => [each, each])} />
        <Field label="Name" value={asked.name} onSet={(name) => setAsked({ ...asked, name })} live />
        <button type="button" class="main" onClick={ask}>Ask</button>
      </div>
      <Trouble error={error} />
      {said && <p class={said.allowed ? "note good" : "note bad"} role="status">{`${visible(said.principal)} ${said.allowed ? "may" : "may not"}: ${visible(said.why)}`}</p>}
      <h2>Rules</h2>
      <Trouble error={rules.error} />
      {rules.data && <Table label="Rules" rows={rules.data.rules} keyOf={(rule) => rule.id} empty="There is no rule." columns={[
        { name: "Principal", show: (rule) => visible(rule.principal) },
        { name: "Effect", unseen: true, show: (rule) => (rule.deny ? <span class="bad">may not</span> : "may") },
        { name: "Operations", show: (rule) => rule.operations.map(visible).join(", ") },
        { name: "Name", show: (rule) => <code>{visible(rule.name)}</code> },
        { name: "Made", show: (rule) => <When at={rule.created} /> },
        { name: "By", show: (rule) => visible(rule.created_by) },
      ]} />}
      <h2>Tokens</h2>
      <Trouble error={tokens.error} />
      {tokens.data && <Table label="Tokens" rows={tokens.data.tokens} keyOf={(token) => token.token_id} empty="There is no token." columns={[
        { name: "User", show: (token) => visible(token.user) },
        { name: "Groups", show: (token) => token.groups.map(visible).join(", ") || "–" },
        { name: "Id", show: (token) => <code>{visible(token.token_id)}</code> },
        { name: "Made", show: (token) => <When at={token.created} /> },
        { name: "Ends", show: (token) => (token.expires ? <When at={token.expires} /> : "never") },
        { name: "By", show: (token) => visible(token.created_by) },
      ]} />}
      <h2>Quotas</h2>
      <Trouble error={quotas.error} />
      {quotas.data && <Table label="Quotas" rows={quotas.data.quotas} keyOf={(quota) => `${quota.principal} ${quota.client_id}`} empty="There is no quota." columns={[
        { name: "Principal", show: (quota) => visible(quota.principal) },
        { name: "Client", show: (quota) => visible(quota.client_id) || "–" },
        { name: "At each broker", show: (quota) => Object.entries(quota.limits).map(([name, value]) => `${visible(name)} ${value.toLocaleString("en-US", { maximumFractionDigits: 6 })}`).join(", ") },
      ]} />}
    </>
  );
}
