// What leaves the page: text for the clipboard, and figures. Tokens only become text nodes, here too.
import { type ComponentChildren, render } from "preact";
import { arithmetic } from "./arithmetic";
import type { Command } from "./commands";
import type { Matrix } from "./data";
import { css, exactText, inkOn, MINUS, ramp } from "./format";
import { cellColour, type HeatProps, type Label, nameOf, pixels } from "./heat";
import { matrixProps } from "./matrix";
import type { Head, Scene } from "./model";
import type { Place } from "./spot";

const quoted = (text: string) =>
  /[",\n\r]/.test(text) || /^[=+@-]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
const digits = (value: number) => exactText(value).replace(MINUS, "-");

function asCsv(rows: Label[], columns: Label[], matrix: Matrix, only?: number): string {
  const lines = [["query", ...columns.map((c) => quoted(nameOf(c)))].join(",")];
  for (let r = 0; r < matrix.rows; r++) {
    if (only !== undefined && r !== only) continue;
    lines.push([quoted(nameOf(rows[r]!)), ...columns.map((_, c) => digits(matrix.at(r, c)))].join(","));
  }
  return `${lines.join("\n")}\n`;
}

function asNumpy(matrix: Matrix): string {
  const rows = Array.from(
    { length: matrix.rows },
    (_, r) => `    [${Array.from({ length: matrix.columns }, (_, c) => digits(matrix.at(r, c))).join(", ")}],`,
  );
  return `import numpy as np\nfrom numpy import inf, nan\n\nmatrix = np.array([\n${rows.join("\n")}\n], dtype=np.float32)\n`;
}

async function copy(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

// A figure on white: cells with numbers if they are few, labels, and a scale.
function asSvg(props: HeatProps, title: string, subtitle: string): string {
  const { rows, columns, scale } = props;
  const count = rows.length * columns.length;
  const few = count <= 256;
  const many = count > 16_384; // a cell takes 60 bytes, a pixel hardly any
  const cell = few ? 46 : Math.max(2, Math.min(16, 900 / Math.max(rows.length, columns.length)));
  const named = cell >= 9;
  const letters = (labels: Label[]) => Math.min(24, Math.max(0, ...labels.map((l) => nameOf(l).length)));
  const shorten = (text: string) => ([...text].length > 24 ? `${[...text].slice(0, 23).join("")}…` : text);
  const left = 20 + (named ? letters(rows) * 7 : 40);
  const top = 64 + (named ? letters(columns) * 7 : 16);
  const wide = columns.length * cell;
  const high = rows.length * cell;
  const width = Math.max(left + wide + 20, 420);
  const height = top + high + 50;
  const every = named ? 1 : Math.ceil(40 / cell);
  const across = (column: number) => left + (column + 0.5) * cell;
  const down = (row: number) => top + (row + 0.5) * cell + 4;
  const cells = (many ? [] : rows).flatMap((_, r) =>
    columns.map((_, c) => ({ r, c, colour: cellColour(props, "light", r, c) })),
  );
  const labels = (axis: Label[], draw: (text: string, n: number) => ComponentChildren) =>
    axis.map((label, n) => (n % every ? null : draw(named ? shorten(nameOf(label)) : label.number, n)));
  const stops = ramp("light", scale.signed);
  const y = top + high + 20;
  const drawn = document.createElement("div");
  render(
    <svg
      xmlns="http://www.w3.org/2000/svg"
      width={width}
      height={height}
      viewBox={`0 0 ${width} ${height}`}
      font-family="sans-serif"
    >
      <title>{title}</title>
      <rect width={width} height={height} fill="#fff" />
      <text x="20" y="26" font-size="15" font-weight="700">
        {title}
      </text>
      <text x="20" y="44" font-size="11" fill="#555">
        {subtitle}
      </text>
      {many ? (
        <image
          href={pixels(props, "light", { shownRows: rows.length, shownColumns: columns.length }).toDataURL()}
          x={left}
          y={top}
          width={wide}
          height={high}
          image-rendering="pixelated"
        />
      ) : (
        <g shape-rendering="crispEdges">
          {cells.map(({ r, c, colour }) => (
            <rect
              x={left + c * cell}
              y={top + r * cell}
              width={cell}
              height={cell}
              fill={colour ? css(colour) : "#e3e6ea"}
            />
          ))}
        </g>
      )}
      <g font-size="11" text-anchor="middle">
        {few &&
          cells.map(({ r, c, colour }) => (
            <text x={across(c)} y={down(r)} fill={colour ? inkOn(colour) : "#555"}>
              {props.text(r, c)}
            </text>
          ))}
      </g>
      <g font-size={named ? Math.min(11, cell * 0.95) : 9}>
        {labels(rows, (text, r) => (
          <text x={left - 5} y={down(r)} text-anchor="end">
            {text}
          </text>
        ))}
        {labels(columns, (text, c) => (
          <text
            x={across(c) + (named ? 4 : 0)}
            y={top - 5}
            transform={named ? `rotate(-90 ${across(c) + 4} ${top - 5})` : undefined}
            text-anchor={named ? undefined : "middle"}
          >
            {text}
          </text>
        ))}
      </g>
      {stops.map((stop, n) => n % 4 === 0 && <rect x={left + n / 2} y={y} width="2.2" height="8" fill={css(stop)} />)}
      <g font-size="10">
        <text x={left - 6} y={y + 8} text-anchor="end">
          {digits(scale.low)}
        </text>
        <text x={left + 134} y={y + 8}>
          {digits(scale.high)}
        </text>
      </g>
    </svg>,
    drawn,
  );
  return new XMLSerializer().serializeToString(drawn.firstChild!);
}

function download(text: string, file: string, type: string) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = file;
  link.click(); // the URL lives as long as the page: a browser may first ask where to save
}

// The page as it was opened.
function wholePage(): string {
  const page = document.documentElement.cloneNode(true) as HTMLElement;
  page.querySelector("#app")!.textContent = "";
  // what its first script unpacked
  for (const element of page.querySelectorAll("style, head > script")) element.remove();
  delete page.dataset.ready;
  return `<!doctype html>\n${page.outerHTML}\n`;
}

// What can be copied, and what can be saved, of a place.
export function exportsOf(
  scene: Scene,
  head: Head | null,
  place: Place,
  key: number | null,
  command: string,
  { stageHelp, words }: { stageHelp: Record<string, string>; words: Record<string, string> },
  say: (text: string) => void,
): { copies: Command[]; saves: Command[] } {
  const copies: Command[] = [];
  const saves: Command[] = [];
  const copied = (key: string, name: string, text: () => string) =>
    copies.push({
      key,
      name,
      group: "Copy",
      run: async () => say((await copy(text())) ? `copied: ${name}` : words.uncopied!),
    });
  const saved = (key: string, name: string, file: string, type: string, text: () => string) =>
    saves.push({
      key,
      name,
      group: "Save",
      run: () => {
        download(text(), file, type);
        say(`saved: ${file}`);
      },
    });
  const found = head && matrixProps(scene, head, place.stage);
  if (head && found) {
    const { props, matrix, map } = found;
    const { query } = place.spot;
    const what = map ? "map" : place.stage;
    const file = `${head.unit.name.replace(" ", "-")}-${what}`;
    const csv = () => asCsv(props.rows, props.columns, matrix);
    if (!map && key !== null)
      copied("c", "the cell", () => `${props.say(query, key)}\n${arithmetic(head, query, key)}\n`);
    if (!map) copied("r", "the row (CSV)", () => asCsv(props.rows, props.columns, matrix, query));
    copied("m", "the matrix (CSV)", csv);
    copied("n", "the matrix (NumPy)", () => asNumpy(matrix));
    const svg = () => asSvg(props, `${head.unit.name} ${what}`, stageHelp[what]!);
    saved("f", "the matrix as a figure (SVG)", `${file}.svg`, "image/svg+xml", svg);
    saved("m", "the matrix as a table (CSV)", `${file}.csv`, "text/csv", csv);
    saved("n", "the matrix as code (NumPy)", `${file}.py`, "text/x-python", () => asNumpy(matrix));
  }
  if (command) copied("t", "the command of this matrix", () => command);
  copied("l", "the link to this place", () => location.href);
  saved("p", "this page", "page.html", "text/html", wholePage);
  return { copies, saves };
}
