// Reads JSON into a tree for showing it: numbers as they are written, names in their order, also repeated ones. Bounded,
// because a value is whatever a producer wrote: null means that it is shown as text.

export type Tree =
  | { kind: "object"; items: [string, Tree][] }
  | { kind: "array"; items: Tree[] }
  | { kind: "text"; text: string }
  | { kind: "word"; text: string };

export const LEVELS_MAX = 64;
export const NODES_MAX = 5000;
export const CHARS_MAX = 256 * 1024;
const SPACE = /[ \t\n\r]*/y;
const WORD = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null/y;
const TEXT = /"(?:[^"\\\u0000-\u001f]|\\.)*"/y;

export function readTree(source: string): Tree | null {
  if (source.length > CHARS_MAX || !/^\s*[[{]/.test(source)) return null;
  let at = 0;
  let nodes = 0;
  const next = (pattern: RegExp): string | null => {
    pattern.lastIndex = at;
    const found = pattern.exec(source);
    if (found) at = pattern.lastIndex;
    return found ? found[0] : null;
  };
  const take = (sign: string): boolean => {
    next(SPACE);
    if (source[at] !== sign) return false;
    at += 1;
    return true;
  };
  const text = (): string => {
    next(SPACE);
    const found = next(TEXT);
    if (found === null) throw new SyntaxError("text");
    return JSON.parse(found) as string;
  };
  const value = (level: number): Tree => {
    nodes += 1;
    if (level > LEVELS_MAX || nodes > NODES_MAX) throw new RangeError("too large");
    if (take("{")) {
      const items: [string, Tree][] = [];
      if (take("}")) return { kind: "object", items };
      do {
        const name = text();
        if (!take(":")) throw new SyntaxError("colon");
        items.push([name, value(level + 1)]);
      } while (take(","));
      if (!take("}")) throw new SyntaxError("end");
      return { kind: "object", items };
    }
    if (take("[")) {
      const items: Tree[] = [];
      if (take("]")) return { kind: "array", items };
      do items.push(value(level + 1));
      while (take(","));
      if (!take("]")) throw new SyntaxError("end");
      return { kind: "array", items };
    }
    if (source[at] === '"') return { kind: "text", text: text() };
    const word = next(WORD);
    if (word === null) throw new SyntaxError("value");
    return { kind: "word", text: word };
  };
  try {
    const found = value(1);
    next(SPACE);
    return at === source.length ? found : null;
  } catch {
    return null;
  }
}
