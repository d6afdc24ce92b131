// The console: navigation, keys, sign-in, and which page is shown.
import { render, type JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { begin, isKept, session, signIn, signOut, signedOut } from "./api";
import { go, link, place } from "./place";
import { visible } from "./show";
import { Dialog, forget, search } from "./ui";
import { GroupPage, Groups } from "./pages/groups";
import { Lake } from "./pages/lake";
import { LetterGroups, Letters } from "./pages/letters";
import { Access, Connections, Timed, Transactions } from "./pages/others";
import { Overview } from "./pages/overview";
import { QueuePage, Queues } from "./pages/queues";
import { TopicPage } from "./pages/topic";
import { Topics } from "./pages/topics";
import { TracePage } from "./pages/trace";

interface Entry { key: string; path: string; name: string; cluster?: boolean }
const PAGES: Entry[] = [
  { key: "o", path: "", name: "Overview" },
  { key: "t", path: "topics", name: "Topics" },
  { key: "g", path: "groups", name: "Groups" },
  { key: "q", path: "queues", name: "Queues" },
  { key: "d", path: "letters", name: "Dead letters" },
  { key: "m", path: "timed", name: "Timed", cluster: true },
  { key: "x", path: "transactions", name: "Transactions" },
  { key: "r", path: "trace", name: "Trace" },
  { key: "l", path: "lake", name: "Lake", cluster: true },
  { key: "a", path: "access", name: "Access", cluster: true },
  { key: "c", path: "connections", name: "Connections", cluster: true },
];
const KEYS = "ledgermq-keys";

function Page(): JSX.Element {
  const [page = "", name] = place.value.path;
  switch (page) {
    case "": return <Overview />;
    case "topics": return name === undefined ? <Topics /> : <TopicPage key={name} name={name} />;
    case "groups": return name === undefined ? <Groups /> : <GroupPage key={name} name={name} />;
    case "queues": return name === undefined ? <Queues /> : <QueuePage key={name} name={name} />;
    case "letters": return name === undefined ? <LetterGroups /> : <Letters key={name} group={name} />;
    case "timed": return <Timed />;
    case "transactions": return <Transactions />;
    case "trace": return <TracePage />;
    case "lake": return <Lake />;
    case "access": return <Access />;
    case "connections": return <Connections />;
    default: return <><h1>No such page</h1><p><a href={link([])}>Overview</a></p></>;
  }
}

function SignIn(): JSX.Element {
  const [token, setToken] = useState("");
  const [error, setError] = useState("");
  const [busy, setBusy] = useState(false);
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    setBusy(true);
    try {
      await signIn(token.trim());
    } catch (caught) {
      setError((caught as Error).message);
    }
    setBusy(false);
  };
  return (
    <main class="sign-in">
      <h1>LedgerMQ</h1>
      {signedOut.value && <p class="note" role="status">{visible(signedOut.value)}</p>}
      <form onSubmit={submit}>
        <label class="field wide"><span>Token</span>
          <input type="password" name="token" autocomplete="off" value={token} onInput={(event) => setToken(event.currentTarget.value)} autofocus /></label>
        {error && <p class="note bad" role="alert">{visible(error)}</p>}
        <button type="submit" class="main" disabled={busy || !token.trim()}>Sign in</button>
      </form>
      <p class="dim">An administrator makes tokens: ledgermq token create NAME. The token is sealed in a cookie of this browser for 12 hours.</p>
    </main>
  );
}

function Help({ keys, setKeys, onClose }: { keys: boolean; setKeys: (on: boolean) => void; onClose: () => void }): JSX.Element {
  const rows: [string, string][] = [["/", "search"], ["j, k", "next and previous row"], ["Enter", "open the row"], ...PAGES.map(({ key, name }): [string, string] => [`g ${key}`, name]), ["?", "this help"]];
  return (
    <Dialog title="Keys" onClose={onClose}>
      <dl class="facts keys">{rows.map(([key, text]) => <div key={key}><dt><kbd>{key}</kbd></dt><dd>{text}</dd></div>)}</dl>
      <label><input type="checkbox" checked={keys} onChange={(event) => setKeys(event.currentTarget.checked)} /> Keys are on</label>
    </Dialog>
  );
}

function useKeys(on: boolean, help: () => void): void {
  useEffect(() => {
    let before = "";
    const pressed = (event: KeyboardEvent): void => {
      const at = event.target as HTMLElement;
      forget();
      if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(at.tagName) || document.querySelector("dialog[open]")) return;
      const first = before;
      before = event.key === "g" ? "g" : "";
      if (event.key === "?") return help();
      if (!on) return;
      const rows = [...document.querySelectorAll<HTMLElement>("[data-row]")];
      const now = rows.indexOf(document.activeElement as HTMLElement);
      const page = first === "g" ? PAGES.find((each) => each.key === event.key) : undefined;
      if (page) go(page.path ? [page.path] : []);
      else if (event.key === "/") search();
      else if (event.key === "j") rows[Math.min(now + 1, rows.length - 1)]?.focus();
      else if (event.key === "k") rows[Math.max(now - 1, 0)]?.focus();
      else return;
      event.preventDefault();
    };
    addEventListener("keydown", pressed);
    addEventListener("pointerdown", forget);
    return () => (removeEventListener("keydown", pressed), removeEventListener("pointerdown", forget));
  }, [on]);
}

function App(): JSX.Element {
  const [begun, setBegun] = useState(false);
  const [helping, setHelping] = useState(false);
  const [keys, setKeys] = useState(localStorage.getItem(KEYS) !== "off");
  useEffect(() => void begin().then(() => setBegun(true)), []);
  useKeys(keys, () => setHelping(true));
  const [page = "", name] = place.value.path;
  useEffect(() => {
    document.title = `${name ?? PAGES.find((each) => each.path === page)?.name ?? ""} – LedgerMQ`;
    scrollTo(0, 0);
    document.querySelector("header nav a[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }, [page, name, begun]);
  if (!begun) return <main />;
  const who = session.value;
  if (!who) return <SignIn />;
  return (
    <>
      <header>
        <a class="brand" href={link([])}>LedgerMQ</a>
        <nav aria-label="Pages">
          {PAGES.filter((each) => !each.cluster || who.cluster).map((each) => <a key={each.path} href={link(each.path ? [each.path] : [])} aria-current={each.path === page ? "page" : undefined}>{each.name}</a>)}
        </nav>
        <div class="who">
          <span>{who.open ? "open to all" : visible(who.principal)}{who.write ? "" : " · reads only"}</span>
          <button type="button" class="chip" onClick={() => setHelping(true)} aria-label="Keys">?</button>
          {!who.open && <button type="button" class="chip" onClick={() => void signOut()}>Sign out</button>}
        </div>
      </header>
      <main>
        {isKept() && <p class="note">The token is too long for a cookie: this page keeps it in its memory, until it is closed or loaded again.</p>}
        <Page />
      </main>
      {helping && <Help keys={keys} onClose={() => setHelping(false)} setKeys={(on) => (localStorage.setItem(KEYS, on ? "on" : "off"), setKeys(on))} />}
    </>
  );
}

render(<App />, document.getElementById("app")!);
