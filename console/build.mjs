// Builds the console: `npm ci --ignore-scripts && node build.mjs [FOLDER]`. The output is the same byte for byte for the
// same sources and lock file; it is committed in ledgermq_gateway/static/, so that nothing needs Node at run time.
import { build } from "esbuild";
import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const out = process.argv[2] ?? join(here, "../ledgermq_gateway/static");
mkdirSync(out, { recursive: true });
await build({
  absWorkingDir: here,
  entryPoints: ["src/app.tsx", "src/app.css"],
  bundle: true,
  minify: true,
  format: "esm",
  target: ["chrome123", "firefox120", "safari17.5"], // the first ones with light-dark()
  jsx: "automatic",
  jsxImportSource: "preact",
  charset: "ascii",
  legalComments: "none",
  outdir: out,
});
for (const name of ["index.html", "icon.svg"]) copyFileSync(join(here, "src", name), join(out, name));
const licences = ["preact", "@preact/signals", "@preact/signals-core", "uplot"].map((name) => {
  const folder = join(here, "node_modules", name);
  const { version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  return `${name} ${version} (${license})\n\n${readFileSync(join(folder, "LICENSE"), "utf8").trim()}\n`;
});
writeFileSync(join(out, "LICENSES.txt"), licences.join(`\n${"-".repeat(80)}\n\n`));
