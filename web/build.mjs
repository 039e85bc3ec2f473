// Builds the script and the style of the page. With --verify, it compares them with the committed ones instead.
import { readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const LARGEST = 60_000; // bytes of script and style together
const here = dirname(fileURLToPath(import.meta.url));
const target = join(here, "..", "attnscope", "views", "page");
const result = await build({
  absWorkingDir: here,
  entryPoints: { page: "src/main.tsx" },
  bundle: true,
  minify: true,
  write: false,
  outdir: ".",
  format: "iife",
  target: ["chrome103", "firefox113", "safari16.4"],
  jsx: "automatic",
  jsxImportSource: "preact",
  charset: "ascii",
  legalComments: "none",
});
let total = 0;
let different = false;
for (const file of result.outputFiles) {
  const name = file.path.endsWith(".css") ? "page.css" : "page.js";
  const path = join(target, name);
  total += file.contents.length;
  if (process.argv.includes("--verify")) {
    const same = Buffer.compare(readFileSync(path), Buffer.from(file.contents)) === 0;
    different ||= !same;
    console.log(
      `${name}: ${same ? "the committed file equals the build" : "differs from the build; run npm run build"}`,
    );
  } else {
    writeFileSync(path, file.contents);
  }
}
console.log(`${total.toLocaleString("en")} bytes of at most ${LARGEST.toLocaleString("en")}`);
process.exit(different || total > LARGEST ? 1 : 0);
