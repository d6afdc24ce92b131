import type { JSX } from "preact";
import { part } from "../api";
import { link, place, set } from "../place";
import { count, visible } from "../show";
import { Field, Table, Trouble, useGet } from "../ui";

interface Queue {
  group: string; backlog: number; leased: number;
  partitions: { topic: string; partition: number; start: number; end: number; high_watermark: number; backlog: number; leased: number; waiting: number; finished: number; members: { member_id: string; leased: number }[] }[];
}

export function Queues(): JSX.Element {
  const { search = "", sort = "-Backlog" } = place.value.params;
  const queues = useGet<{ queues: Queue[] }>("/v1/queues", 5000);
  const rows = (queues.data?.queues ?? []).filter((queue) => queue.group.includes(search));
  return (
    <>
      <h1>Queues</h1>
      <div class="bar"><Field label="Name has" value={search} onSet={(value) => set({ search: value })} search live /></div>
      <Trouble error={queues.error} />
      {queues.data && <Table label="Queues" rows={rows.slice(0, 500)} keyOf={(queue) => queue.group} sorted={sort} onSort={(by) => set({ sort: by })} empty="There is no queue group that you may see." columns={[
        { name: "Group", sort: (queue) => queue.group, show: (queue) => <a data-row href={link(["queues", queue.group])}>{visible(queue.group)}</a> },
        { name: "Topics", show: (queue) => [...new Set(queue.partitions.map((each) => each.topic))].map(visible).join(", ") },
        { name: "Backlog", right: true, sort: (queue) => queue.backlog, show: (queue) => count(queue.backlog) },
        { name: "Leased", right: true, sort: (queue) => queue.leased, show: (queue) => count(queue.leased) },
        { name: "Waiting", right: true, show: (queue) => count(queue.partitions.reduce((sum, each) => sum + each.waiting, 0)) },
      ]} />}
    </>
  );
}

export function QueuePage({ name }: { name: string }): JSX.Element {
  const queue = useGet<Queue>(`/v1/queues/${part(name)}`, 5000);
  const found = queue.data;
  return (
    <>
      <p class="trail"><a href={link(["queues"])}>Queues</a></p>
      <h1>{visible(name)}</h1>
      <Trouble error={queue.error} />
      {found && <>
        <p role="status" class="note">{`${visible(name)} has ${count(found.backlog)} messages left; members have leased ${count(found.leased)} of them.`}</p>
        <Table label="Partitions of the queue" rows={found.partitions} keyOf={(each) => `${each.topic}/${each.partition}`} columns={[
          { name: "Topic", show: (each) => <a data-row href={link(["topics", each.topic])}>{visible(each.topic)}</a> },
          { name: "Partition", right: true, show: (each) => String(each.partition) },
          { name: "Finished below", right: true, show: (each) => count(each.start) },
          { name: "End", right: true, show: (each) => count(each.high_watermark) },
          { name: "Backlog", right: true, show: (each) => count(each.backlog) },
          { name: "Leased", right: true, show: (each) => count(each.leased) },
          { name: "Waiting", right: true, show: (each) => count(each.waiting) },
          { name: "Members", show: (each) => each.members.map((member) => `${visible(member.member_id)} (${count(member.leased)})`).join(", ") || "–" },
        ]} />
      </>}
    </>
  );
}
