// A client that knows nothing but the OpenAPI document, over `fetch`. It makes calls of every kind against a gateway:
//
//     node document_client.mjs http://127.0.0.1:8080
//
// It ends with an error where the gateway does not do what the document says, and prints what it has read, as JSON.
import assert from "node:assert/strict";

const PROBLEM = "application/problem+json";
const TYPES = {
  string: (value) => typeof value === "string",
  integer: Number.isInteger,
  number: (value) => typeof value === "number",
  boolean: (value) => typeof value === "boolean",
  null: (value) => value === null,
  array: Array.isArray,
  object: (value) => typeof value === "object" && value !== null && !Array.isArray(value),
};

class Client {
  constructor(base, document) {
    this.base = base;
    this.document = document;
    this.operations = new Map();
    for (const [path, operations] of Object.entries(document.paths)) {
      for (const [method, operation] of Object.entries(operations)) this.operations.set(operation.operationId, { method: method.toUpperCase(), path, operation });
    }
  }

  // Sends one request. `body`: a value for JSON, or text or bytes of `type`. Returns status, headers and the open answer.
  async open(name, { body, type = "application/json", accept, signal, ...values } = {}) {
    const found = this.operations.get(name);
    assert.ok(found, `the document has no ${name}`);
    const { method, operation } = found;
    let path = found.path;
    const query = new URLSearchParams();
    const headers = accept ? { accept } : {};
    for (const parameter of operation.parameters) {
      const value = values[parameter.name];
      delete values[parameter.name];
      if (value === undefined) assert.ok(!parameter.required, `${name} needs ${parameter.name}`);
      else if (parameter.in === "path") path = path.replace(`{${parameter.name}}`, encodeURIComponent(value));
      else if (parameter.in === "query") query.set(parameter.name, value);
      else headers[parameter.name] = value;
    }
    assert.deepEqual(values, {}, `${name} has no such parameters`);
    if (body !== undefined) {
      assert.ok(type in operation.requestBody.content, `${name} takes no ${type}`);
      headers["content-type"] = type;
      if (type === "application/json") body = JSON.stringify(body);
    }
    const answer = await fetch(`${this.base}${path}${query.size ? `?${query}` : ""}`, { method, headers, body, signal });
    const media = (answer.headers.get("content-type") ?? "").split(";")[0];
    const said = operation.responses[answer.status] ?? operation.responses.default;
    if (!said.content) return { answer, media: "", schema: {} };
    assert.ok(media in said.content, `${name} answers ${answer.status} as ${media}, which the document does not say`);
    return { answer, media, schema: said.content[media].schema };
  }

  // Sends one request, and returns the body of its answer: JSON as a value, everything else as text.
  async call(name, options) {
    const { answer, media, schema } = await this.open(name, options);
    const text = await answer.text();
    if (!media) assert.equal(text, "", `${name} answers a body, which the document does not say`);
    if (media === PROBLEM) throw Object.assign(new Error(text), { problem: this.fitting(JSON.parse(text), schema) });
    return media === "application/json" ? this.fitting(JSON.parse(text), schema) : text;
  }

  // Returns the problem with which a call fails.
  async refused(name, options) {
    const error = await this.call(name, options).then(() => assert.fail(`${name} is not refused`), (caught) => caught);
    if (!error.problem) throw error;
    return error.problem;
  }

  // Returns the value. It must have the types and the required fields of its schema.
  fitting(value, schema, where = "$") {
    const why = this.misfit(value, schema, where);
    assert.equal(why, "", why);
    return value;
  }

  misfit(value, schema, where) {
    if (schema.$ref) return this.misfit(value, this.resolved(schema.$ref), where);
    if (schema.anyOf) {
      const found = schema.anyOf.map((each) => this.misfit(value, each, where));
      return found.includes("") ? "" : found.join("; ");
    }
    const types = schema.type === undefined ? [] : [schema.type].flat();
    if (types.length && !types.some((type) => TYPES[type](value))) return `${where} is no ${types.join(" or ")}: ${JSON.stringify(value)}`;
    if (schema.enum && !schema.enum.includes(value)) return `${where} is none of ${schema.enum.join(", ")}`;
    if (Array.isArray(value)) return value.map((each, at) => (schema.items ? this.misfit(each, schema.items, `${where}[${at}]`) : "")).find(Boolean) ?? "";
    if (!TYPES.object(value)) return "";
    const missing = (schema.required ?? []).find((field) => !(field in value));
    if (missing) return `${where} has no ${missing}`;
    const fields = Object.entries(schema.properties ?? {}).filter(([field]) => field in value);
    return fields.map(([field, each]) => this.misfit(value[field], each, `${where}.${field}`)).find(Boolean) ?? "";
  }

  resolved(reference) {
    return reference.split("/").slice(1).reduce((at, name) => at[name], this.document);
  }
}

// Yields the events of a stream until its reader leaves.
async function* events(answer) {
  let rest = "";
  let event = {};
  for await (const part of answer.body.pipeThrough(new TextDecoderStream())) {
    const lines = (rest + part).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line === "") {
        if (event.data !== undefined) yield event;
        event = {};
      } else if (!line.startsWith(":")) {
        const colon = line.indexOf(":");
        event[line.slice(0, colon)] = line.slice(colon + 1).trimStart();
      }
    }
  }
}

async function topics(client) {
  const made = await client.call("post_v1_topics", { body: { name: "t", partitions: 2, settings: { "dedup.window.ms": 60_000 } } });
  assert.equal(made.partitions, 2);
  const refused = await client.refused("post_v1_topics", { body: { name: "t", partitions: 2 } });
  assert.deepEqual([refused.status, refused.code, refused.retriable], [409, "TOPIC_EXISTS", false]);
  assert.equal((await client.refused("post_v1_topics", { body: { name: "u", partitons: 2 } })).status, 400);
  return made;
}

async function records(client) {
  const name = "post_v1_topics_topic_records";
  const body = { records: [{ key: "table-7", value_json: { coffees: 2 } }] };
  const first = await client.call(name, { body, topic: "t", "Idempotency-Key": "order-17" });
  const again = await client.call(name, { body, topic: "t", "Idempotency-Key": "order-17" });
  const [{ partition, offset }] = first.results;
  assert.deepEqual(again.results, [{ ...first.results[0], duplicate: true }]);
  const lines = '{"value": "one", "key": "table-7"}\n{"value": null, "key": "table-7"}\n';
  await client.call(name, { body: lines, type: "application/x-ndjson", topic: "t" });
  const raw = await client.call(name, { body: new Uint8Array([0, 255, 10]), type: "application/octet-stream", topic: "t" });
  const place = { topic: "t", partition: raw.results[0].partition, from: raw.results[0].offset, limit: 1 };
  const { answer } = await client.open("get_v1_topics_topic_partitions_partition_records", { ...place, accept: "application/octet-stream" });
  assert.deepEqual([...new Uint8Array(await answer.arrayBuffer())], [0, 255, 10]);
  const page = await client.call("get_v1_topics_topic_partitions_partition_records", { topic: "t", partition, from: offset, limit: 1, values: "json" });
  assert.deepEqual(page.records[0].value_json, { coffees: 2 });
  const missing = await client.refused("post_v1_topics_topic_records", { body, topic: "unknown" });
  assert.deepEqual([missing.status, missing.code], [404, "UNKNOWN_TOPIC"]);
}

// All records, a page of two at a time.
async function pages(client) {
  const found = [];
  for (let cursor; ; ) {
    const page = await client.call("get_v1_topics_topic_records", { topic: "t", from: cursor ? undefined : "earliest", cursor, limit: 2, values: "base64" });
    if (!page.records.length) return found;
    found.push(...page.records);
    cursor = page.next;
  }
}

// Reads one event, leaves, and goes on behind it.
async function stream(client, count) {
  const found = [];
  for (let last; found.length < count; ) {
    const stop = new AbortController();
    const { answer } = await client.open("get_v1_topics_topic_events", { topic: "t", "Last-Event-ID": last, from: last ? undefined : "earliest", values: "base64", signal: stop.signal });
    for await (const event of events(answer)) {
      found.push(JSON.parse(event.data));
      if (event.id) {
        last = event.id;
        break;
      }
    }
    stop.abort();
  }
  return found;
}

async function queue(client, count) {
  let finished = 0;
  while (finished < count) {
    const leased = await client.call("post_v1_queues_group_leases", { group: "workers", body: { topics: ["t"], max: count, wait_ms: 1000, start: "earliest" } });
    if (!leased.messages.length) continue;
    const answers = leased.messages.map(({ handle }) => ({ handle }));
    const { results } = await client.call("post_v1_queues_group_answers", { group: "workers", body: { answers } });
    assert.ok(results.every(({ counts }) => counts), JSON.stringify(results));
    finished += answers.length;
  }
  return finished;
}

// Commits the place behind a record. An offset that goes back is refused.
async function group(client, { topic_id }, { partition, offset }) {
  const behind = { topic: "t", partition, offset: offset + 1, topic_id };
  const kept = await client.call("put_v1_groups_group_offsets", { group: "readers", body: { epoch: 0, offsets: [behind] } });
  assert.deepEqual((await client.call("get_v1_groups_group_offsets", { group: "readers" })).offsets, [behind]);
  const back = await client.refused("put_v1_groups_group_offsets", { group: "readers", body: { epoch: kept.epoch, offsets: [{ ...behind, offset }] } });
  assert.equal(back.status, 409);
}

async function transaction(client) {
  const body = { as: "node", records: [{ topic: "t", value: "paid" }, { topic: "t", value: "sent" }] };
  const done = await client.call("post_v1_transactions", { body, "Idempotency-Key": "invoice-9" });
  assert.equal(done.state, "committed");
}

const [base] = process.argv.slice(2);
const client = new Client(base, await (await fetch(`${base}/openapi.json`)).json());
const made = await topics(client);
await records(client);
const read = await pages(client);
const place = ({ partition, offset }) => `${partition}:${offset}`;
const streamed = await stream(client, read.length);
assert.deepEqual(streamed.map(place).sort(), read.map(place).sort());
await queue(client, read.length);
await group(client, made, read[0]);
await transaction(client);
const changed = await client.call("patch_v1_topics_topic", { body: { partitions: 3 }, topic: "t", topic_id: made.topic_id });
assert.equal(changed.partitions, 3);
await client.call("delete_v1_topics_topic", { topic: "t", topic_id: made.topic_id });
assert.deepEqual((await client.call("get_v1_topics")).topics, []);
console.log(JSON.stringify(read));
