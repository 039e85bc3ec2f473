// Draws the nodes of attnscope/views/page/lowering.py. All text becomes text nodes.
import type { ComponentChildren } from "preact";
import { type Data, type Matrix, matrixOf } from "./data";
import { css, type Digits, digitsText, exactText, inkOn, mixed, parseHex, type Scale } from "./format";
import { Heat, type Label } from "./heat";
import { useTheme } from "./theme";
import { Walk } from "./walk";

// biome-ignore lint/suspicious/noExplicitAny: nodes are what lowering.py writes
export type Node = any;
export type Span = string | [string, string, number, string];

export function Spans({ spans }: { spans: Span[] }) {
  const theme = useTheme();
  return (
    <>
      {spans.map((span, n) => {
        if (typeof span === "string") return span;
        const [text, look, foreign, colour] = span;
        const base = theme === "dark" ? ([20, 24, 31] as const) : ([255, 255, 255] as const);
        const paint = colour ? mixed(parseHex(colour), [...base], 0.85) : null;
        const style = paint ? { background: css(paint), color: inkOn(paint) } : undefined;
        const name = `${look ? `look-${look}` : ""}${colour ? " role" : ""}`;
        return foreign ? (
          <bdi key={n} class={name} style={style}>
            {text}
          </bdi>
        ) : (
          <span key={n} class={name} style={style}>
            {text}
          </span>
        );
      })}
    </>
  );
}

export const plain = (spans: Span[]): string => spans.map((s) => (typeof s === "string" ? s : s[0])).join("");

export function Nodes({ nodes, data }: { nodes: Node[]; data: Data }) {
  return (
    <>
      {nodes.map((node, n) => {
        const draw = DRAWN[node.k];
        return draw ? <div key={n}>{draw(node, data)}</div> : null;
      })}
    </>
  );
}

const INDENT = 1.25; // rem of a step

function text(node: Node) {
  const style = node.indent ? { marginLeft: `${node.indent * INDENT}rem` } : undefined;
  return (
    <p class={node.remark ? "remark" : "text"} style={style}>
      {node.items.map((item: Span[], n: number) => (
        <span key={n}>
          {n ? node.between : ""}
          <Spans spans={item} />
        </span>
      ))}
    </p>
  );
}

function facts(node: Node) {
  return (
    <dl class="facts" style={node.indent ? { marginLeft: `${node.indent * INDENT}rem` } : undefined}>
      {node.lines.map(([name, value]: [string, Span[]], n: number) => (
        <div key={n}>
          <dt>{name}</dt>
          <dd>
            <Spans spans={value} />
          </dd>
        </div>
      ))}
    </dl>
  );
}

const labelled = ([number, name]: [string | null, Span[]]) => (
  <>
    {number !== null && <span class="number">{number}</span>} <Spans spans={name} />
  </>
);

// What is wider than the page scrolls, also by keyboard.
export function Scrolling({ label, children }: { label: string; children: ComponentChildren }) {
  return (
    <div class="scrolling" role="region" tabIndex={0} aria-label={label}>
      {children}
    </div>
  );
}

function table(node: Node) {
  const { columns, labels, bars } = node;
  const count = Math.max(labels.length, ...columns.map((c: Node) => c.cells.length));
  const headed = labels.length > 0;
  const title = node.heading || columns.map((c: Node) => plain(c.heading)).join(", ") || "table";
  return (
    <Scrolling label={title}>
      <table class="data">
        <thead>
          <tr>
            {headed && <th scope="col">{node.heading}</th>}
            {bars && (
              <td>
                <span class="hidden">bar</span>
              </td>
            )}
            {columns.map((column: Node, n: number) =>
              column.heading.length ? (
                <th key={n} scope="col" class={column.left ? "left" : ""}>
                  <Spans spans={column.heading} />
                </th>
              ) : (
                <td key={n} />
              ),
            )}
          </tr>
        </thead>
        <tbody>
          {Array.from({ length: count }, (_, row) => (
            <tr key={row}>
              {headed && <th scope="row">{labels[row] && labelled(labels[row])}</th>}
              {bars && <td class="bars">{bars[row] != null && <Bar share={bars[row]} signed />}</td>}
              {columns.map((column: Node, n: number) => (
                <td key={n} class={`${column.left ? "left" : ""} ${column.look ? `look-${column.look}` : ""}`}>
                  <Spans spans={column.cells[row] ?? []} />
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </Scrolling>
  );
}

export function Bar({ share, signed }: { share: number; signed?: boolean }) {
  const size = Math.min(1, Math.abs(share));
  return (
    <span class={`meter ${signed && share < 0 ? "below" : ""}`} aria-hidden="true">
      <span style={{ width: `${size * 100}%` }} />
    </span>
  );
}

export interface Axis {
  kind: string;
  labels: [string, Span[]][];
  special: number[];
  sink: number[];
  total: number;
}

export const labelsOf = (axis: Axis): Label[] => axis.labels.map(([number, name]) => ({ number, name: plain(name) }));

// What a cell of a stage says: as views/numbers.py writes it.
export function cellText(panel: { name: string; digits: Digits; maskedWord?: string }, value: number, masked: boolean) {
  if (masked && (panel.name === "weights" || panel.name === "output")) return panel.maskedWord ?? "masked";
  if (panel.name === "masked" && value === -Infinity) return "·";
  if (panel.name === "weights" && value === 0) return "0";
  return digitsText(value, panel.digits);
}

function Panel({ panel, data, limit }: { panel: Node; data: Data; limit?: number }) {
  const matrix: Matrix = data.matrix(panel.matrix);
  const rows = labelsOf(panel.rows);
  const columns = labelsOf(panel.columns);
  const masked = new Set<number>(panel.masked);
  const heads = panel.columns.kind === "head";
  const write = (r: number, c: number) =>
    panel.texts ? panel.texts[r]?.[c] : cellText(panel, matrix.at(r, c), masked.has(r));
  const name = (label: Label) => `${label.number} ${label.name}`.trim();
  const title = plain(panel.title) || panel.name;
  const say = (r: number, c: number) => {
    if (heads) {
      const value = matrix.at(r, c);
      return `L${rows[r]!.number.replace("L", "")}H${columns[c]!.number}: ${panel.texts[r][c]}${Number.isNaN(value) ? "" : `, ${exactText(value)}`}`;
    }
    const value = matrix.at(r, c);
    const shown = masked.has(r) ? "masked" : value === -Infinity ? "not allowed" : exactText(value);
    return `${name(rows[r]!)} → ${name(columns[c]!)}: ${shown}`;
  };
  return (
    <figure>
      <figcaption>
        <strong>
          <Spans spans={panel.title} />
        </strong>{" "}
        <span class="dim">
          <Spans spans={panel.arithmetic} />
        </span>
      </figcaption>
      <Heat
        rows={rows}
        columns={columns}
        value={matrix.at}
        text={write}
        say={say}
        scale={panel.scale as Scale}
        label={title}
        kind={panel.columns.kind}
        colours={panel.colours}
        zero={panel.name === "weights"}
        masked={masked}
        limit={limit ?? 64}
      />
    </figure>
  );
}

function matrices(node: Node, data: Data) {
  const wide = node.panels.some((p: Node) => p.columns.labels.length > 24);
  return (
    <div class={`panels ${wide ? "wide" : ""} ${node.panels.length === 1 ? "alone" : ""}`}>
      {node.panels.map((panel: Node, n: number) => (
        <Panel key={n} panel={panel} data={data} />
      ))}
    </div>
  );
}

function heads(node: Node, data: Data) {
  return (
    <div class="panels alone">
      <Panel panel={node.panels[0]} data={data} limit={54} />
    </div>
  );
}

export const runLabels = (starts: number[]): Label[] =>
  starts.slice(0, -1).map((start, n) => {
    const end = starts[n + 1]! - 1;
    return { number: start === end ? `${start}` : `${start}–${end}`, name: "" };
  });

function map(node: Node, data: Data) {
  const matrix = data.matrix(node.weights);
  const rows = runLabels(node.queries);
  const columns = runLabels(node.keys);
  const logs = matrixOf(
    Float32Array.from(matrix.data, (w) => (w > 0 ? Math.log10(w) : Number.NaN)),
    matrix.rows,
    matrix.columns,
  );
  return (
    <figure>
      <figcaption>
        <strong>weights</strong> <span class="dim">of runs of queries (rows) on runs of {node.kind}s, as log₁₀</span>
      </figcaption>
      <Heat
        rows={rows}
        columns={columns}
        value={logs.at}
        text={() => ""}
        say={(r, c) =>
          `queries ${rows[r]!.number} → ${node.kind}s ${columns[c]!.number}: ${exactText(matrix.at(r, c))}`
        }
        scale={{ low: Math.log10(node.scale.low), high: Math.log10(node.scale.high) || 1e-9, signed: false }}
        label="map of weights"
        kind="map"
      />
    </figure>
  );
}

function bars(node: Node) {
  const rows: (Node[] | null)[] = node.rows;
  const queried = node.queries !== null;
  return (
    <section>
      <p class="text">
        <strong>
          <Spans spans={node.title} />
        </strong>{" "}
        <span class="dim">
          <Spans spans={node.meaning} />
        </span>
      </p>
      <Scrolling label={plain(node.title) || "contributors"}>
        <table class="data contributors">
          <thead>
            <tr>
              {queried && <th scope="col">query</th>}
              <th scope="col">source</th>
              <td>
                <span class="hidden">bar</span>
              </td>
              {node.measures.map((measure: string, n: number) => (
                <th key={n} scope="col">
                  {measure}
                </th>
              ))}
            </tr>
          </thead>
          {rows.map((row, q) => (
            <tbody key={q}>
              {(row ?? []).map((bar, rank) => (
                <tr key={rank}>
                  {queried && (rank ? <td /> : <th scope="row">{labelled(node.queries[q])}</th>)}
                  <td class="left">
                    {bar.before.length > 0 && (
                      <span class="dim">
                        <Spans spans={bar.before} />{" "}
                      </span>
                    )}
                    {labelled(node.sources[bar.index])}
                    {bar.after.length > 0 && (
                      <span class="dim">
                        {" "}
                        <Spans spans={bar.after} />
                      </span>
                    )}
                    {bar.remark && <abbr title={bar.remark[1]}>{bar.remark[0]}</abbr>}
                  </td>
                  <td class="bars">
                    <Bar share={bar.length} />
                  </td>
                  {bar.numbers.map((written: string, n: number) => (
                    <td key={n} class={n === node.by ? "" : "dim"}>
                      {written}
                    </td>
                  ))}
                </tr>
              ))}
              {!row && (
                <tr>
                  {queried && <th scope="row">{labelled(node.queries[q])}</th>}
                  <td class="left dim">nothing to rank</td>
                </tr>
              )}
              {node.rest[q] && (
                <tr>
                  {queried && <td />}
                  <td class="left dim">{node.rest[q][0]}</td>
                  <td />
                  <td class="dim">{node.rest[q][1]}</td>
                </tr>
              )}
            </tbody>
          ))}
        </table>
      </Scrolling>
      {node.remarks.map(([mark, said]: [string, string], n: number) => (
        <p key={n} class="remark">
          {mark} {said}
        </p>
      ))}
    </section>
  );
}

const walk = (node: Node, data: Data) => <Walk node={node} data={data} />;

const DRAWN: Record<string, (node: Node, data: Data) => ComponentChildren> = {
  text,
  facts,
  table,
  matrices,
  heads,
  map,
  bars,
  walk,
};
