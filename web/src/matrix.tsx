// The matrix of a head; side by side with other sides of a comparison, or with a pinned head, and the difference.

import { useMemo } from "preact/hooks";
import { type Matrix, matrixOf } from "./data";
import { cellText, digitsFor, digitsText, exactText, fixed, scaleOf } from "./format";
import { Heat, type HeatProps, type Label, nameOf } from "./heat";
import { Axis, type Head, type Scene, type SceneData } from "./model";
import type { PanelProps } from "./panel";

const runLabels = (starts: number[]): Label[] =>
  starts.slice(0, -1).map((start, n) => {
    const end = starts[n + 1]! - 1;
    return { number: start === end ? `${start}` : `${start}–${end}`, name: "" };
  });

interface Difference {
  matrix: Matrix;
  rows: Label[];
  columns: Label[];
  pairs: SceneData["pairs"];
}

// The second side minus the first. Of a key that a side lacks, the weight is 0; other numbers of it are not known.
function difference(first: Head | null, second: Head | null, stage: string): Difference | null {
  const [a, b] = [first?.stage(stage), second?.stage(stage)];
  if (!first || !second || !a || !b) return null;
  const { scene } = second;
  const apart = first.scene !== scene;
  const pairs = apart ? scene.data.pairs : null;
  if ((apart && first.scene.data.pairs) || (!pairs && (a.rows !== b.rows || a.columns !== b.columns))) return null;
  const rows = (pairs ? new Axis(pairs.rows) : scene.queries).labels;
  const columns = (pairs ? new Axis(pairs.columns) : scene.keys).labels;
  const found = new Float32Array(rows.length * columns.length);
  const number = (side: Matrix, row: number, column: number) =>
    column >= 0 ? side.at(row, column) : stage === "weights" ? 0 : Number.NaN;
  for (let n = 0; n < found.length; n++) {
    const r = Math.floor(n / columns.length);
    const c = n % columns.length;
    const row = pairs?.queries[r] ?? [r, r];
    const column = pairs?.keys[c] ?? [c, c];
    const x = number(a, row[0], column[0]);
    const y = number(b, row[1], column[1]);
    found[n] = x === y ? 0 : y - x;
    if (!Number.isFinite(found[n])) found[n] = Number.NaN;
  }
  return { matrix: matrixOf(found, rows.length, columns.length), rows, columns, pairs };
}

export function MatrixPanel(
  props: PanelProps & { sceneAt: (text: number, mask: number) => Scene | undefined; masks: string[]; title: string },
) {
  const { scene, head, place, sceneAt, masks, title, words } = props;
  const { spot, stage, pinned } = place;
  const views: { name: string; scene: Scene; head: Head | null; other?: [Head | null, Head | null]; held?: 1 }[] = [];
  if (masks.length > 1) {
    for (let mask = 0; mask < masks.length; mask++) {
      const side = sceneAt(spot.text, mask)!;
      views.push({ name: masks[mask]!, scene: side, head: side.head(spot.layer, spot.head) });
    }
    const other = spot.mask === 0 ? 1 : spot.mask;
    views.push({
      name: `${masks[other]} − ${masks[0]}`,
      scene,
      head: null,
      other: [views[0]!.head, views[other]!.head],
    });
  } else views.push({ name: "", scene, head });
  if (pinned) {
    const side = sceneAt(pinned.text, pinned.mask)!;
    const held = side.head(pinned.layer, pinned.head);
    const name = side.headName(pinned.layer, pinned.head);
    views.push({ name: `pinned ${name}`, scene: side, head: held, held: 1 });
    views.push({ name: `${title} − ${name}`, scene, head: null, other: [held, head] });
  }
  return (
    <section class="card matrix-panel" aria-label="matrix">
      {head?.unit.chosen && <p class="dim small">{head.unit.chosen}</p>}
      <div class={views.length > 1 ? "panels" : ""}>
        {views.map((view, n) => (
          <figure key={n}>
            <figcaption>
              <strong>{view.name ? <bdi>{view.name}</bdi> : title}</strong> <span class="dim">{stage}</span>{" "}
              <Exactness head={view.other ? null : view.head} words={words} />
            </figcaption>
            <MatrixView
              {...props}
              view={view}
              main={n === (masks.length > 1 ? spot.mask : 0)}
              several={views.length > 1}
            />
          </figure>
        ))}
      </div>
    </section>
  );
}

function Exactness({ head, words }: { head: Head | null; words: Record<string, string> }) {
  if (!head) return null;
  const whole = Object.keys(head.unit.stages).length > 0;
  const text = words[whole ? "exact" : !head.exact ? "summary" : head.map ? "map" : "sources"];
  return <span class={head.exact ? "badge" : "badge rounded"}>{text}</span>;
}

export function matrixProps(
  scene: Scene,
  head: Head,
  stage: string,
): { props: HeatProps; matrix: Matrix; map: boolean } | null {
  const map = head.map;
  const matrix = head.stage(stage) ?? (map || stage !== "weights" ? null : head.sparse());
  const label = `${head.unit.name} ${stage}`;
  if (matrix?.columns) {
    const masked = new Set(head.unit.masked);
    const scale = stage === "weights" ? { low: 0, high: 1, signed: false } : scaleOf(matrix.data, true);
    const digits = digitsFor(largest(matrix), 2);
    const say = (r: number, c: number) => {
      const value = matrix.at(r, c);
      const name = `${scene.queries.name(r)} → ${scene.keys.name(c)}`;
      if (masked.has(r) && stage === "weights") return `${name}: masked`;
      return `${name}: ${value === -Infinity ? "not allowed" : Number.isNaN(value) ? "not listed" : exactText(value)}`;
    };
    const text = (r: number, c: number) =>
      head.stage(stage)
        ? cellText({ name: stage, digits }, matrix.at(r, c), masked.has(r))
        : digitsText(matrix.at(r, c), digits).replace("nan", "");
    const props = {
      rows: scene.queries.labels,
      columns: scene.keys.labels,
      value: matrix.at,
      text,
      say,
      scale,
      label,
      zero: stage === "weights",
    };
    return { props, matrix, map: false };
  }
  if (!map) return null;
  const rows = runLabels(map.queries);
  const columns = runLabels(map.keys);
  const most = largest(map.matrix);
  const note = head.exact ? "" : " (rounded to 3 decimals)";
  const say = (r: number, c: number) =>
    `queries ${rows[r]!.number} → keys ${columns[c]!.number}: ${head.exact ? exactText(map.matrix.at(r, c)) : fixed(map.matrix.at(r, c), 3)}${note}`;
  const props = {
    rows,
    columns,
    value: (r: number, c: number) => Math.sqrt(map.matrix.at(r, c)),
    text: () => "",
    say,
    scale: { low: 0, high: Math.sqrt(most) || 1, signed: false },
    label: `${label}, map`,
    legend: "√ of the weights of runs",
  };
  return { props, matrix: map.matrix, map: true };
}

function largest(matrix: Matrix): number {
  let most = 0;
  for (let n = 0; n < matrix.rows * matrix.columns; n++) {
    const size = Math.abs(matrix.data[matrix.offset + n]!);
    if (size > most && Number.isFinite(size)) most = size;
  }
  return most;
}

const runOf = (starts: number[], at: number) => Math.max(0, starts.findIndex((start) => start > at) - 1);

function MatrixView({
  view,
  scene: here,
  place,
  cursorKey,
  goto,
  setHovered,
  main,
  several,
  words,
}: PanelProps & {
  view: { scene: Scene; head: Head | null; other?: [Head | null, Head | null]; held?: 1 };
  main: boolean;
  several: boolean;
}) {
  const { scene, head, other } = view;
  const { spot, stage } = place;
  const id = main ? "panel-matrix" : undefined;
  const height = several ? 460 : Math.max(560, Math.min(1000, innerHeight - 240));
  // Where the cursor is on another side, or where a cell of that side is on this one.
  const across = (from: Scene, to: Scene, query: number, key: number): [number, number] => [
    from.on(to, "queries", query),
    from.on(to, "keys", key),
  ];
  const cursor = across(here, scene, spot.query, cursorKey ?? 0);
  const moved = useMemo(() => other && difference(...other, stage), [other?.[0], other?.[1], stage]);
  const shown = useMemo(() => head && matrixProps(scene, head, stage), [scene, head, stage]);
  if (other) {
    if (!moved) return <p class="dim">{words.difference}</p>;
    const { matrix, rows, columns, pairs } = moved;
    const { at } = matrix;
    const digits = digitsFor(largest(matrix), 2);
    const [first, second] = other.map((one) => one!.scene) as [Scene, Scene];
    const shown = [first, second].map((side) => across(here, side, spot.query, cursorKey ?? 0));
    const row = pairs?.queries.findIndex(([i, j]) => i === shown[0]![0] || j === shown[1]![0]);
    const column = pairs?.keys.findIndex(([i, j]) => (i < 0 ? j === shown[1]![1] : i === shown[0]![1]));
    return (
      <Heat
        rows={rows}
        columns={columns}
        value={at}
        text={(r, c) => (Number.isNaN(at(r, c)) ? "·" : digitsText(at(r, c), digits))}
        say={(r, c) =>
          `${nameOf(rows[r]!)} → ${nameOf(columns[c]!)}: ${Number.isNaN(at(r, c)) ? "only one side has it" : exactText(at(r, c))}`
        }
        scale={stage === "weights" ? { low: -1, high: 1, signed: true } : scaleOf(matrix.data, true)}
        label="difference"
        height={height}
        digits={place.digits}
        cursor={pairs ? [row!, column!] : cursor}
        onCursor={(query, key) => {
          if (!pairs) return goto({ query, key });
          const side = pairs.keys[key]![1] < 0 ? 0 : 1; // one that has the key
          goto({
            mask: (side ? second : first).data.mask,
            query: pairs.queries[query]![side],
            key: pairs.keys[key]![side],
          });
        }}
      />
    );
  }
  const found = shown;
  if (!found) return <p class="dim">This page does not hold this head{head ? `'s ${stage}` : ""}.</p>;
  if (found.map) {
    const { queries, keys } = head!.map!;
    return (
      <>
        {stage !== "weights" && <p class="dim">{words.weights}</p>}
        <Heat
          {...found.props}
          id={id}
          height={height}
          digits={place.digits}
          cursor={[runOf(queries, spot.query), runOf(keys, cursorKey ?? 0)]}
          onCursor={(r, c) => goto({ query: queries[r]!, key: keys[c]! })}
        />
      </>
    );
  }
  return (
    <Heat
      {...found.props}
      id={id}
      height={height}
      digits={place.digits}
      cursor={cursor}
      onCursor={(query, key) => {
        if (!view.held) return goto({ mask: scene.data.mask, query, key });
        [query, key] = across(scene, here, query, key);
        goto({ query, key });
      }}
      onHover={(cell) => {
        const [query, key] = cell ? across(scene, here, ...cell) : [-1, -1];
        setHovered(query < 0 ? null : [query, key < 0 ? null : key]);
      }}
    />
  );
}
