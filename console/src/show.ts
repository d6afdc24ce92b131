// How things are shown as text. Whatever a producer can write reaches the page as a string only, and signs that are
// not visible, or that turn the direction of text, come as escapes.

// eslint-disable-next-line no-control-regex
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u2028\u2029\ufff9-\ufffb\p{Default_Ignorable_Code_Point}\p{Surrogate}]/gu;

export function visible(text: string): string {
  return text.replace(HIDDEN, (sign) => `\\u{${sign.codePointAt(0)!.toString(16)}}`);
}

export function oneLine(text: string, most = 160): string {
  const cut = text.slice(0, most);
  return visible(cut.replace(/[\n\t]/g, " ")) + (text.length > most ? "…" : "");
}

export function count(value: number): string {
  return Math.round(value).toLocaleString("en-US");
}

export function bytes(value: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) [value, at] = [value / 1024, at + 1];
  return `${at && value < 100 ? value.toFixed(1) : Math.round(value)} ${units[at]}`;
}

export function duration(seconds: number): string {
  const parts: [number, string][] = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  for (const [size, unit] of parts) if (seconds >= size) return `${Math.floor(seconds / size)} ${unit}`;
  return "0 s";
}

export function ago(time: Date, now: Date): string {
  const seconds = (now.getTime() - time.getTime()) / 1000;
  return seconds >= 0 ? `${duration(seconds)} ago` : `in ${duration(-seconds)}`;
}

export function utc(time: Date): string {
  return time.toISOString().replace("T", " ").replace("Z", " UTC");
}

export function bytesOf(text: string | null | undefined, base64: string | null | undefined): Uint8Array | null {
  if (typeof base64 === "string") return Uint8Array.from(atob(base64), (sign) => sign.charCodeAt(0));
  return typeof text === "string" ? new TextEncoder().encode(text) : null;
}

export function hex(data: Uint8Array, most: number): string {
  const lines = [];
  for (let at = 0; at < Math.min(data.length, most); at += 16) {
    const row = data.slice(at, at + 16);
    const codes = Array.from(row, (code) => code.toString(16).padStart(2, "0")).join(" ");
    const signs = Array.from(row, (code) => (code > 31 && code < 127 ? String.fromCharCode(code) : ".")).join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${codes.padEnd(47)}  ${signs}`);
  }
  return lines.join("\n");
}
