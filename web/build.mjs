// Builds the scripts and the style of the page. With --verify, it compares them with the committed ones instead.
import { readFileSync, writeFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";
import { minify } from "terser";

const LARGEST = 83_000; // bytes of both scripts
// Names that are neither in the data nor in the DOM, and need no more than a letter.
const INTERNAL =
  /^(shownRows|shownColumns|cursorKey|setHovered|onCursor|onHover|onEnter|onQuery|onChoose|sceneAt|upright|paint|legend|limit|headName|unlisted|shares|picture|store|statisticsOf|listed|hovered|leftOutOf|rowIndex|corrected|pinned|needle|cursor|offset|several|columnLabels|rowLabels|spot|headChosen|touched|compared|cell|line|bound|act|goto|scene|room|place|forbidden|unit|held|bare|onRow|onColumn|onPicture|onMatrix|onPoint|onKey|copies|saves|wholeRow|readers|reader|largestElsewhere|matrices|sparse|nearest|leave|named|fit|space|choices|axis|steps|best|rank|share|ofToken|least|corner|history|index|most|apart|seen|view|side|about|record|queryAxis|keyAxis|sourceAxis|tokenLabels|tokenPositions|number|pointed|forbids|lens|ofCuts|choose|cache|here|stage|lensSpot|ofHead|tint|computed|floats|bytes|eachShare|exactRow|drained|passed|word)$/;
// Names of preact that only the script itself uses, most of them of class components, which a page has none of.
const PREACT =
  /^(current|props|state|render|setState|forceUpdate|contextType|defaultProps|getChildContext|debounceRendering|shouldComponentUpdate|getSnapshotBeforeUpdate|getDerivedStateFrom(Props|Error)|componentWill(Update|Mount|Unmount|ReceiveProps)|componentDid(Catch|Mount|Update)|__[a-zA-Z]|__html|diffed|unmount|vnode)$/;
const here = dirname(fileURLToPath(import.meta.url));
const target = join(here, "..", "attnscope", "views", "page");
const common = {
  absWorkingDir: here,
  bundle: true,
  minify: true,
  write: false,
  outdir: ".",
  format: "iife",
  target: ["chrome110", "firefox115", "safari16.4"],
  charset: "utf8",
  legalComments: "none",
};
const loader = await build({ ...common, entryPoints: { loader: "src/loader.ts" } });
const page = await build({
  ...common,
  entryPoints: { page: "src/main.tsx" },
  jsx: "transform",
  jsxFactory: "h",
  jsxFragment: "Fragment",
  inject: ["src/jsx.ts"],
  mangleProps: new RegExp(`${INTERNAL.source}|${PREACT.source}`),
  define: {
    // the same: the first two of numbers, which types ensure
    "Number.isNaN": "isNaN",
    "Number.isFinite": "isFinite",
    "Number.parseInt": "parseInt",
    ...Object.fromEntries(["max", "min", "floor", "round", "abs"].map((name) => [`Math.${name}`, `$${name}`])),
    "Array.from": "$from",
    "Object.entries": "$entries",
    "document.createElement": "$create",
    "document.getElementById": "$find",
    "document.documentElement": "$root",
  },
});
let total = 0;
let different = false;
for (const file of [...loader.outputFiles, ...page.outputFiles]) {
  const name = basename(file.path);
  const isScript = name.endsWith(".js");
  const options = {
    ecma: 2022,
    compress: {
      passes: 4,
      unsafe_arrows: true,
      pure_getters: true,
      unsafe: true,
      unsafe_methods: true,
      keep_fargs: false,
    },
    format: { ascii_only: false },
  };
  const text = isScript ? (await minify(file.text, options)).code : file.text;
  const contents = Buffer.from(text);
  const path = join(target, name);
  if (isScript) total += contents.length;
  if (process.argv.includes("--verify")) {
    const same = Buffer.compare(readFileSync(path), contents) === 0;
    different ||= !same;
    console.log(
      `${name}: ${same ? "the committed file equals the build" : "differs from the build; run npm run build"}`,
    );
  } else {
    writeFileSync(path, contents);
  }
}
console.log(`${total.toLocaleString("en")} bytes of scripts, of at most ${LARGEST.toLocaleString("en")}`);
process.exit(different || total > LARGEST ? 1 : 0);
