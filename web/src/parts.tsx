// Draws the nodes of attnscope/views/page/rendering.py: elements, and panels with a matrix. All text becomes text nodes.
import type { Data, Ref } from "./data";
import { Dim, type Tree, tree } from "./elements";
import { cellText, type Digits, exactText, NOT_ALLOWED, type Scale } from "./format";
import { Heat, type Label, nameOf } from "./heat";
import { Pictures } from "./pictures";
import { Walk } from "./walk";

// biome-ignore lint/suspicious/noExplicitAny: nodes are what rendering.py writes
export type Node = any;

// Model, mask, text and warnings, which a page that begins with a walk has in its first line.
export function aboutOf(nodes: Node[]): Node[] {
  const end = nodes.findIndex((node) => !isAbout(node));
  return nodes[end]?.k === "walk" ? nodes.slice(0, end) : [];
}

const isAbout = (node: Node) =>
  node[0] === "dl" || (node[0] === "div" && /look-(alarm|warning)/.test(JSON.stringify(node)));

export function Nodes({ nodes, data }: { nodes: Node[]; data: Data }) {
  const about = aboutOf(nodes);
  return (
    <>
      {nodes.slice(about.length).map((node, n) =>
        Array.isArray(node) ? (
          tree(node as Tree)
        ) : node.k === "walk" ? (
          <Walk key={n} node={node} data={data} about={about} />
        ) : node.k === "pictures" ? (
          <Pictures key={n} node={node} data={data} />
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

interface AxisNode {
  kind: string;
  labels: [string, string][];
}

interface PanelNode {
  id?: string; // of the matrix of a head, which a click on its cell of a map shows
  name: string;
  label: string;
  title: Tree[];
  arithmetic: Tree[];
  matrix: Ref;
  texts?: string[][] | null; // of heads: numbers, and what is said of them
  said?: string[][] | null;
  rows: AxisNode;
  columns: AxisNode;
  scale: Scale;
  digits: Digits;
  masked: number[];
  maskedWord?: string;
  colours?: string[][] | null;
  log?: boolean;
  levels?: number[];
  path?: [number, number][];
}

// Numbers of cells that are hatched: the mask forbids them, or nothing is read.
const NOTHING: Record<string, number> = { masked: -Infinity, weights: 0 };

const labelsOf = (axis: AxisNode): Label[] => axis.labels.map(([number, name]) => ({ number, name }));

function Panel({ panel, data }: { panel: PanelNode; data: Data }) {
  const { at } = data.matrix(panel.matrix);
  const { texts, said, log } = panel;
  const rows = labelsOf(panel.rows);
  const columns = labelsOf(panel.columns);
  const masked = new Set(panel.masked);
  const say = (r: number, c: number) => {
    const value = at(r, c);
    if (said) return said[r]![c]!;
    const shown = masked.has(r) ? "masked" : value === -Infinity ? NOT_ALLOWED : exactText(value);
    return `${nameOf(rows[r]!)} ← ${nameOf(columns[c]!)}: ${shown}`;
  };
  return (
    <figure id={panel.id}>
      <figcaption>
        <strong>{panel.title.map(tree)}</strong> <Dim>{panel.arithmetic.map(tree)}</Dim>
      </figcaption>
      <Heat
        rows={rows}
        columns={columns}
        value={log ? (r, c) => Math.log10(at(r, c) || Number.NaN) : at}
        text={(r, c) => (log ? "" : (texts?.[r]?.[c] ?? cellText(panel, at(r, c), masked.has(r))))}
        say={say}
        scale={panel.scale}
        label={panel.label}
        height={Math.max(16 * rows.length, Math.min(640, innerHeight * 0.55))} // what follows is in sight
        colours={panel.colours}
        levels={panel.levels}
        path={panel.path}
        onCursor={(r, c) => document.getElementById(rows[r]!.number + columns[c]!.number)?.scrollIntoView()}
        forbidden={(r, c) => !masked.has(r) && at(r, c) === NOTHING[panel.name]}
      />
    </figure>
  );
}
