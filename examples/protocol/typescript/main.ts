// A client of LedgerMQ's protocol in TypeScript, levels 1 to 3 of docs/protocol.md, with the tasks of
// `ledgermq conformance`. Only the generated code of ledgermq.proto, gRPC and Arrow are used.
import { Client } from "./client";
import { Member } from "./member";

const BATCH_RECORDS = 4;
const WAIT_MS = 1000;

async function produce(client: Client, topic: string, partition: number, first: number, count: number): Promise<void> {
  const session = await client.openSession(topic, partition);
  const values = Array.from({ length: count }, (_, row) => Buffer.from(String(first + row)));
  for (let at = 0; at < count; at += BATCH_RECORDS) await client.produce(session, values.slice(at, at + BATCH_RECORDS));
}

async function fetch(client: Client, topic: string, partition: number, first: bigint, count: number): Promise<void> {
  for (let offset = first, left = count; left > 0;) {
    const [records, next] = await client.fetch(topic, partition, offset, WAIT_MS);
    for (const record of records.slice(0, left)) console.log(`${record.offset} ${record.value}`);
    left -= records.length;
    offset = next;
  }
}

async function member(client: Client, topic: string, group: string): Promise<void> {
  let ended = false;
  process.stdin.on("end", () => { ended = true; }).resume();
  await new Member(client, group, topic).run(() => ended,
    (partition, record) => console.log(`${partition} ${record.offset} ${record.value}`));
}

async function main(task: string, address: string, topic: string, ...asked: string[]): Promise<void> {
  const client = new Client(address);
  try {
    if (task === "produce") await produce(client, topic, Number(asked[0]), Number(asked[1]), Number(asked[2]));
    else if (task === "fetch") await fetch(client, topic, Number(asked[0]), BigInt(asked[1]), Number(asked[2]));
    else if (task === "member") await member(client, topic, asked[0]);
    else throw new Error(`there is no task ${task}: produce, fetch, member`);
  } finally {
    client.close();
  }
}

const [task, address, topic, ...asked] = process.argv.slice(2);
main(task, address, topic, ...asked).catch((error) => {
  console.error(String(error));
  process.exitCode = 1;
});
