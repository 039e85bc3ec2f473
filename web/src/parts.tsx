// Draws the nodes of attnscope/views/page/lowering.py: elements, and panels with a matrix. All text becomes text nodes.
import { type ComponentChildren, h } from "preact";
import type { Data, Ref } from "./data";
import { type Digits, digitsText, exactText, type Scale } from "./format";
import { Heat, type Label, nameOf } from "./heat";
import { Walk } from "./walk";

export type Tree = string | [string, Record<string, unknown>, ...Tree[]];

export const tree = (node: Tree): ComponentChildren =>
  typeof node === "string" ? node : h(node[0], node[1], ...(node.slice(2) as Tree[]).map(tree));

// biome-ignore lint/suspicious/noExplicitAny: nodes are what lowering.py writes
export type Node = any;

export function Nodes({ nodes, data }: { nodes: Node[]; data: Data }) {
  return (
    <>
      {nodes.map((node, n) =>
        Array.isArray(node) ? (
          tree(node as Tree)
        ) : node.k === "walk" ? (
          <Walk key={n} node={node} data={data} />
        ) : (
          <div key={n} class={`panels ${node.look}`}>
            {node.panels.map((panel: PanelNode, m: number) => (
              <Panel key={m} panel={panel} data={data} />
            ))}
          </div>
        ),
      )}
    </>
  );
}

export function Bar({ share }: { share: number }) {
  return (
    <span class="meter" aria-hidden="true">
      <span style={{ width: `${Math.min(1, share) * 100}%` }} />
    </span>
  );
}

interface AxisNode {
  kind: string;
  labels: [string, string][];
}

interface PanelNode {
  name: string;
  label: string;
  title: Tree[];
  arithmetic: Tree[];
  matrix: Ref;
  texts?: string[][] | null;
  names?: string[][] | null;
  rows: AxisNode;
  columns: AxisNode;
  scale: Scale;
  digits: Digits;
  masked: number[];
  maskedWord?: string;
  colours?: string[][] | null;
  log?: boolean;
}

// What a cell of a stage says: as views/numbers.py writes it.
export function cellText(panel: { name: string; digits: Digits; maskedWord?: string }, value: number, masked: boolean) {
  if (masked && (panel.name === "weights" || panel.name === "output")) return panel.maskedWord ?? "masked";
  if (panel.name === "masked" && value === -Infinity) return "·";
  if (panel.name === "weights" && value === 0) return "0";
  return digitsText(value, panel.digits);
}

const labelsOf = (axis: AxisNode): Label[] => axis.labels.map(([number, name]) => ({ number, name }));

function Panel({ panel, data }: { panel: PanelNode; data: Data }) {
  const { at } = data.matrix(panel.matrix);
  const { texts, names, log } = panel;
  const rows = labelsOf(panel.rows);
  const columns = labelsOf(panel.columns);
  const masked = new Set(panel.masked);
  const heads = panel.columns.kind === "head";
  const say = (r: number, c: number) => {
    const value = at(r, c);
    if (heads) {
      const number = Number.isNaN(value) ? "" : exactText(value);
      return `${rows[r]!.number}${columns[c]!.number}: ${names ? `${names[r]![c]} ${number}`.trim() : number || texts![r]![c]}`;
    }
    const shown = masked.has(r) ? "masked" : value === -Infinity ? "not allowed" : exactText(value);
    return `${nameOf(rows[r]!)} → ${nameOf(columns[c]!)}: ${shown}`;
  };
  return (
    <figure>
      <figcaption>
        <strong>{panel.title.map(tree)}</strong> <span class="dim">{panel.arithmetic.map(tree)}</span>
      </figcaption>
      <Heat
        rows={rows}
        columns={columns}
        value={log ? (r, c) => Math.log10(at(r, c) || Number.NaN) : at}
        text={(r, c) => (log ? "" : (texts?.[r]?.[c] ?? cellText(panel, at(r, c), masked.has(r))))}
        say={say}
        scale={panel.scale}
        label={panel.label}
        colours={panel.colours}
        zero={panel.name === "weights"}
        limit={heads ? 54 : 64}
      />
    </figure>
  );
}
