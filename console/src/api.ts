// Calls of the gateway. The cookie says who calls, or a token that is kept in this page's memory only.
import { signal } from "@preact/signals";

export interface Session { principal: string; open: boolean; write: boolean; cluster: boolean; now_ms: number }
export class Problem extends Error {
  constructor(readonly status: number, readonly code: string, detail: string, readonly more: Record<string, unknown> = {}) {
    super(detail);
  }
}

export const session = signal<Session | null>(null);
export const signedOut = signal("");
let kept = "";
let aheadMs = 0;

// The brokers' time, which all ages on the pages go by: the clock of this machine may be wrong.
export const now = (): Date => new Date(Date.now() - aheadMs);

function headers(method: string, body: boolean): Record<string, string> {
  const found: Record<string, string> = {};
  if (method !== "GET") found["LedgerMQ-Console"] = "1";
  if (body) found["Content-Type"] = "application/json";
  if (kept) found["Authorization"] = `Bearer ${kept}`;
  return found;
}

async function problemOf(answer: Response): Promise<Problem> {
  try {
    const found = (await answer.json()) as Record<string, unknown>;
    return new Problem(answer.status, String(found.code ?? ""), String(found.detail ?? answer.statusText), found);
  } catch {
    return new Problem(answer.status, "", answer.statusText || "the gateway answers with an error");
  }
}

async function ask(method: string, path: string, body?: unknown, stop?: AbortSignal, more = {}): Promise<Response> {
  let answer: Response;
  try {
    answer = await fetch(path, {
      method,
      headers: { ...headers(method, body !== undefined), ...more },
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: stop,
      cache: "no-store",
    });
  } catch (error) {
    if (stop?.aborted) throw error;
    throw new Problem(0, "UNREACHABLE", "the gateway does not answer");
  }
  if (answer.ok) return answer;
  const problem = await problemOf(answer);
  if (answer.status === 401) {
    signedOut.value = problem.message;
    session.value = null;
  }
  throw problem;
}

export async function get<T>(path: string, stop?: AbortSignal): Promise<T> {
  return (await (await ask("GET", path, undefined, stop)).json()) as T;
}

export async function change<T>(method: string, path: string, body?: unknown): Promise<T | null> {
  const answer = await ask(method, path, body);
  return answer.status === 204 ? null : ((await answer.json()) as T);
}

// Yields the events of a stream. `place`: the id of the last event, where it goes on.
export async function* events(path: string, place: string, stop: AbortSignal): AsyncGenerator<{ id: string; event: string; data: string }> {
  const answer = await ask("GET", path, undefined, stop, place ? { "Last-Event-ID": place } : {});
  const reader = answer.body!.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  let found = { id: "", event: "", data: "" };
  for (;;) {
    const { value, done } = await reader.read().catch((error: unknown) => {
      if (stop.aborted) throw error;
      throw new Problem(0, "UNREACHABLE", "the stream was cut");
    });
    if (done) return;
    const lines = (rest + decoder.decode(value, { stream: true })).split("\n");
    rest = lines.pop()!;
    for (const line of lines) {
      if (line === "") {
        if (found.data || found.id) yield found;
        found = { id: "", event: "", data: "" };
      } else {
        const colon = line.indexOf(":");
        const name = line.slice(0, colon);
        if (name === "id" || name === "event" || name === "data") found[name] += line.slice(colon + 1).trimStart();
      }
    }
  }
}

async function look(method = "GET"): Promise<void> {
  const askedMs = Date.now();
  const found = (await (await ask(method, "/console/session")).json()) as Session;
  aheadMs = askedMs - found.now_ms;
  session.value = found;
  signedOut.value = "";
}

// A cookie that counts no longer is dropped: another gateway of this host name may have made it, and where brokers are
// open to all there is no token to sign in with instead.
export async function begin(): Promise<void> {
  const isRefused = (error: unknown): boolean => error instanceof Problem && error.status === 401;
  let why = "";
  try {
    await look().catch(async (error: unknown) => {
      if (!isRefused(error)) throw error;
      why = signedOut.value;
      await change("DELETE", "/console/session");
      await look();
    });
  } catch (error) {
    signedOut.value = isRefused(error) ? why : (error as Error).message;
  }
}

export async function signIn(token: string): Promise<void> {
  kept = token;
  try {
    await look("POST");
    kept = "";
  } catch (error) {
    if (!(error instanceof Problem && error.code === "INVALID_REQUEST")) {
      kept = "";
      throw error;
    }
    await change("DELETE", "/console/session"); // a cookie of before, beside which no token counts
    await look(); // too long for a cookie: it stays in this page
  }
}

export const isKept = (): boolean => kept !== "";

export async function signOut(): Promise<void> {
  let said = "You have signed out.";
  try {
    await change("DELETE", "/console/session");
  } catch (error) {
    said = `The cookie is still in this browser: ${(error as Error).message}. Load the page again, and sign out.`;
  }
  kept = "";
  session.value = null;
  signedOut.value = said;
}

// A name as a part of a path. The gateway refuses what must be escaped; dots alone would lead to another path.
export function part(name: string): string {
  return /^\.{1,2}$/.test(name) ? "%20" : encodeURIComponent(name).replace(/%(24|26|2B|2C|3A|3B|3D|40)/g, decodeURIComponent);
}

export function query(values: Record<string, string | number | boolean | undefined | null>): string {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) if (value !== undefined && value !== null && value !== "") found.set(name, String(value));
  const text = found.toString();
  return text ? `?${text}` : "";
}
