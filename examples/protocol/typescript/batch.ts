// A batch is a record batch message of Arrow IPC: a stream without its schema in front and its end of 8 bytes behind.
import {
  Binary, CompressionType, compressionRegistry, Field, Int32, List, makeData, RecordBatch, Schema, Struct, Table,
  tableFromIPC, tableToIPC, TimestampMicrosecond, Utf8, vectorFromArray,
} from "apache-arrow";
import { decompress as zstd } from "fzstd";
import { decompress as lz4 } from "lz4js";

const END_BYTES = 8;
const headers = new List(
  new Field("item", new Struct<any>([new Field("key", new Utf8(), true), new Field("value", new Binary(), true)]), true),
);
const schema = new Schema([
  new Field("key", new Binary(), true),
  new Field("value", new Binary(), true),
  new Field("headers", headers, true),
  new Field("timestamp", new TimestampMicrosecond("UTC"), true),
  new Field("timestampType", new Int32(), true),
  new Field("tag", new Utf8(), true),
]);

// Without codecs, Arrow for JavaScript reads no compressed batch. It wants buffers that begin at a multiple of 8 bytes;
// `slice` copies to the beginning of a new one.
compressionRegistry.set(CompressionType.LZ4_FRAME, { decode: (data: Uint8Array) => lz4(data).slice() });
compressionRegistry.set(CompressionType.ZSTD, { decode: (data: Uint8Array) => zstd(data).slice() });

export interface Row { row: number; value: Buffer }

function streamOf(values: Buffer[]): Uint8Array {
  const nothing = values.map(() => null);
  // The builder of timestamps takes milliseconds; data takes what is stored.
  const times = new BigInt64Array(values.length).fill(BigInt(Date.now()) * 1000n);
  const columns = [
    vectorFromArray(nothing, new Binary()).data[0],
    vectorFromArray(values, new Binary()).data[0],
    vectorFromArray(values.map(() => []), headers).data[0],
    makeData({ type: new TimestampMicrosecond("UTC"), length: values.length, data: times }),
    vectorFromArray(values.map(() => 0), new Int32()).data[0],
    vectorFromArray(nothing, new Utf8()).data[0],
  ];
  const rows = makeData({ type: new Struct<any>(schema.fields), length: values.length, children: columns });
  return tableToIPC(new Table([new RecordBatch(schema, rows)]), "stream");
}

// An encapsulated message: a mark of 4 bytes, the length of what follows in 4 bytes, and that; a schema has no body.
const example = Buffer.from(streamOf([Buffer.from("")]));
const front = example.subarray(0, 8 + example.readInt32LE(4));
const end = example.subarray(example.length - END_BYTES);

export function encodeBatch(values: Buffer[]): Buffer {
  const stream = streamOf(values);
  return Buffer.from(stream.subarray(front.length, stream.length - END_BYTES));
}

/** Returns the records that have not expired. */
export function decodeBatch(message: Buffer): Row[] {
  const table = tableFromIPC(new Uint8Array(Buffer.concat([front, message, end])));
  const values = table.getChild("value")!, named = table.getChild("headers")!;
  const rows: Row[] = [];
  for (let row = 0; row < table.numRows; row++) {
    if (!isExpired(named.get(row))) rows.push({ row, value: Buffer.from(values.get(row) ?? []) });
  }
  return rows;
}

function isExpired(entries: Iterable<{ key: string; value: Uint8Array }> | null): boolean {
  for (const entry of entries ?? []) {
    if (entry.key === "ledgermq.expires-ms") return Number(Buffer.from(entry.value).toString()) <= Date.now();
  }
  return false;
}
