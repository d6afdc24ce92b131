// Where the page is. All of it stands in the fragment of the URL, which browsers send to no server: names and keys of
// messages stay out of logs of proxies.
import { signal } from "@preact/signals";

export interface Place { path: string[]; params: Record<string, string> }

export function read(hash: string): Place {
  const [path = "", search = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  let parts: string[];
  try {
    parts = path.split("/").filter(Boolean).map(decodeURIComponent);
  } catch {
    parts = [];
  }
  return { path: parts, params: Object.fromEntries(new URLSearchParams(search)) };
}

export function link(path: string[], params: Record<string, string | number | undefined> = {}): string {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) if (value !== undefined && value !== "") search.set(name, String(value));
  const text = search.toString();
  return `#/${path.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

export const place = signal<Place>(read(location.hash));
const look = (): void => void (place.value = read(location.hash));
addEventListener("hashchange", look);

// Goes there at once, and so do links: browsers report a new fragment later, and the next key would meet the old page.
export function go(path: string[], params: Record<string, string | number | undefined> = {}): void {
  location.hash = link(path, params);
  look();
}
addEventListener("click", (event) => {
  const at = event.target instanceof Element && event.target.closest<HTMLAnchorElement>('a[href^="#/"]');
  if (!at || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  location.hash = at.hash;
  look();
});

// Changes parameters of the page where it is, without a step back in the browser's history.
export function set(params: Record<string, string | undefined>): void {
  const now = place.value;
  const merged: Record<string, string | undefined> = { ...now.params, ...params };
  history.replaceState(null, "", link(now.path, merged));
  place.value = read(location.hash);
}
