// Tests of what decides without a browser: reading JSON for its tree, showing text, and places in URLs. `node test.mjs`
import assert from "node:assert/strict";
import { build } from "esbuild";

async function load(path) {
  const made = await build({ entryPoints: [path], bundle: true, format: "esm", write: false, absWorkingDir: import.meta.dirname });
  return import(`data:text/javascript;base64,${Buffer.from(made.outputFiles[0].text).toString("base64")}`);
}

globalThis.location = { hash: "" };
globalThis.addEventListener = () => {};
const { readTree, LEVELS_MAX, NODES_MAX, CHARS_MAX } = await load("src/json.ts");
const show = await load("src/show.ts");
const { read, link } = await load("src/place.ts");

const word = (text) => ({ kind: "word", text });
assert.deepEqual(readTree('{"a": 12345678901234567890, "a": 1.50, "b": [true, null, "x\\n"]}'), {
  kind: "object",
  items: [["a", word("12345678901234567890")], ["a", word("1.50")], ["b", { kind: "array", items: [word("true"), word("null"), { kind: "text", text: "x\n" }] }]],
});
assert.deepEqual(readTree(" [ ] "), { kind: "array", items: [] });
assert.ok(readTree('{"": {"__proto__": 1}}'));
for (const wrong of ["", "1", '"text"', "{", "[1,]", "[1 2]", '{"a" 1}', "{a: 1}", "[01]", "[1] x", '["\u0001"]', "[\\u0000]", "[NaN]", '["\\x"]']) {
  assert.equal(readTree(wrong), null, wrong);
}
const deep = (levels) => "[".repeat(levels) + "]".repeat(levels);
assert.ok(readTree(deep(LEVELS_MAX)));
assert.equal(readTree(deep(LEVELS_MAX + 1)), null);
assert.equal(readTree("[".repeat(100_000)), null);
assert.ok(readTree(`[${Array(NODES_MAX - 1).fill("1").join(",")}]`));
assert.equal(readTree(`[${Array(NODES_MAX).fill("1").join(",")}]`), null);
assert.equal(readTree(`["${"x".repeat(CHARS_MAX)}"]`), null);

assert.equal(show.visible("a\u202eb\u200b\u0000\u{e0041}\n\t<b>"), "a\\u{202e}b\\u{200b}\\u{0}\\u{e0041}\n\t<b>");
// Names that look the same are told apart: soft hyphens, fillers, selectors, halves of a sign.
for (const sign of ["\u00ad", "\u034f", "\u115f", "\u180e", "\u3164", "\ufe0f", "\uffa0", "\u{e0100}", "\ud800", "\u2066"]) {
  assert.equal(show.visible(`a${sign}b`), `a\\u{${sign.codePointAt(0).toString(16)}}b`);
}
assert.equal(show.visible("Grüße, 你好, 😀, ا"), "Grüße, 你好, 😀, ا");
assert.equal(show.oneLine("a\nb".repeat(100), 5), "a ba …");
assert.equal(show.bytes(0), "0 B");
assert.equal(show.bytes(1536), "1.5 KiB");
assert.equal(show.duration(59), "59 s");
assert.equal(show.duration(7200), "2 h");
assert.equal(show.ago(new Date(0), new Date(90_000)), "1 min ago");
assert.equal(show.ago(new Date(90_000), new Date(0)), "in 1 min");
assert.deepEqual([...show.bytesOf(null, "AAH/")], [0, 1, 255]);
assert.equal(show.bytesOf(null, null), null);
assert.equal(show.hex(new Uint8Array([65, 0, 255]), 16).replace(/ +/g, " "), "00000000 41 00 ff A..");

const names = ["topics", 'a/b?c#d&e=f%<"é', ""];
const params = { key: "a&b=c d+e%/?#é", from: "2026-11-29T12:00:00+01:00" };
assert.deepEqual(read(link(names.slice(0, 2), params)), { path: names.slice(0, 2), params });
assert.deepEqual(read(""), { path: [], params: {} });
assert.deepEqual(read("#/%E0%A4%A"), { path: [], params: {} });
console.log("passed");
