// The matrix of a head; side by side with other sides of a comparison, or with a pinned head, and the difference.

import { useMemo } from "preact/hooks";
import { type Matrix, matrixOf } from "./data";
import { digitsFor, digitsText, exactText, fixed, scaleOf } from "./format";
import { Heat, type HeatProps, type Label } from "./heat";
import type { Head, Scene } from "./model";
import type { PanelProps } from "./panel";
import { cellText } from "./parts";

const runLabels = (starts: number[]): Label[] =>
  starts.slice(0, -1).map((start, n) => {
    const end = starts[n + 1]! - 1;
    return { number: start === end ? `${start}` : `${start}–${end}`, name: "" };
  });

function difference(first: Matrix | null, second: Matrix | null): Matrix | null {
  if (!first || !second || first.rows !== second.rows || first.columns !== second.columns) return null;
  const found = new Float32Array(first.rows * first.columns);
  for (let n = 0; n < found.length; n++) {
    const a = first.data[first.offset + n]!;
    const b = second.data[second.offset + n]!;
    found[n] = a === -Infinity && b === -Infinity ? 0 : b - a;
    if (!Number.isFinite(found[n])) found[n] = Number.NaN;
  }
  return matrixOf(found, first.rows, first.columns);
}

export function MatrixPanel(
  props: PanelProps & { sceneAt: (text: number, mask: number) => Scene | undefined; masks: string[]; title: string },
) {
  const { scene, head, place, sceneAt, masks, title, words } = props;
  const { spot, stage, pinned } = place;
  const views: { name: string; scene: Scene; head: Head | null; other?: [Head | null, Head | null] }[] = [];
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
    views.push({ name: `pinned ${name}`, scene: side, head: held });
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
              main={view.head === head && !view.other}
              first={n === 0}
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
  place,
  cursorKey,
  goto,
  setHovered,
  main,
  first,
  several,
  words,
}: PanelProps & {
  view: { scene: Scene; head: Head | null; other?: [Head | null, Head | null] };
  main: boolean;
  first: boolean;
  several: boolean;
}) {
  const { scene, head, other } = view;
  const { spot, stage } = place;
  const id = main || (first && !main) ? "panel-matrix" : undefined;
  const height = several ? 460 : Math.max(560, Math.min(1000, innerHeight - 240));
  const onCursor = (query: number, key: number) => goto({ query, key });
  const cursor: [number, number] = [spot.query, cursorKey ?? 0];
  const moved = useMemo(
    () => other && difference(other[0]?.stage(stage) ?? null, other[1]?.stage(stage) ?? null),
    [other?.[0], other?.[1], stage],
  );
  const shown = useMemo(() => head && matrixProps(scene, head, stage), [scene, head, stage]);
  if (other) {
    const found = moved;
    if (!found) return <p class="dim">{words.difference}</p>;
    const digits = digitsFor(largest(found), 2);
    return (
      <Heat
        rows={scene.queries.labels}
        columns={scene.keys.labels}
        value={found.at}
        text={(r, c) => (Number.isNaN(found.at(r, c)) ? "·" : digitsText(found.at(r, c), digits))}
        say={(r, c) =>
          `${scene.queries.name(r)} → ${scene.keys.name(c)}: ${Number.isNaN(found.at(r, c)) ? "only one side allows it" : exactText(found.at(r, c))}`
        }
        scale={stage === "weights" ? { low: -1, high: 1, signed: true } : scaleOf(found.data, true)}
        label="difference"
        height={height}
        digits={place.digits}
        cursor={cursor}
        onCursor={onCursor}
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
      onCursor={onCursor}
      onHover={setHovered}
    />
  );
}
