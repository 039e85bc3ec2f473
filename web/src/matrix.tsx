// The matrix of a head; side by side with other sides of a comparison, or with a pinned head, and the difference.

import { useMemo, useState } from "preact/hooks";
import { type Matrix, matrixOf } from "./data";
import { Dim, HeadNav, Scrolling, Small, Term, Token } from "./elements";
import { cellText, digitsFor, digitsText, exactText, fixed, NOT_ALLOWED, type Scale, scaleOf } from "./format";
import { Heat, type HeatProps, type Label, nameOf } from "./heat";
import { Axis, type Head, type Scene, type SceneData, shownStage, stageName } from "./model";
import { type Compared, type PanelProps, stacked, weightScale } from "./panel";
import { Lines } from "./text";

const runLabels = (starts: number[]): Label[] =>
  starts.slice(0, -1).map((start, n) => {
    const end = starts[n + 1]! - 1;
    return { number: start === end ? `${start}` : `${start}–${end}`, name: "" };
  });

type Pair = [number, number];

interface View {
  name: string;
  scene: Scene;
  head: Head | null;
  other?: [View, View]; // the sides whose difference it is
  held?: 1; // it is pinned
}

interface Difference {
  matrix: Matrix;
  rows: Label[];
  columns: Label[];
  pairs: SceneData["pairs"];
  forbidden: (row: number, column: number) => boolean; // neither side's mask allows the cell
}

// The second side minus the first. Of a key that a side lacks, the weight is 0; other numbers of it are not known.
function difference(first: Head | null, second: Head | null, stage: string): Difference | null {
  const [a, b] = [first?.stage(stage), second?.stage(stage)];
  if (!first || !second || !a || !b) return null;
  const { scene } = second;
  const apart = first.scene !== scene;
  const pairs = apart ? scene.record.pairs : null;
  if ((apart && first.scene.record.pairs) || (!pairs && (a.rows !== b.rows || a.columns !== b.columns))) return null;
  const rows = (pairs ? new Axis(pairs.rows) : scene.queryAxis).tokenLabels;
  const columns = (pairs ? new Axis(pairs.columns) : scene.keyAxis).tokenLabels;
  const found = new Float32Array(rows.length * columns.length);
  // The cell's query and key on both sides.
  const cell = (r: number, c: number): [Pair, Pair] => [pairs?.queries[r] ?? [r, r], pairs?.keys[c] ?? [c, c]];
  const number = (side: Matrix, row: number, column: number) =>
    column >= 0 ? side.at(row, column) : stage === "weights" ? 0 : Number.NaN;
  for (let n = 0; n < found.length; n++) {
    const [row, column] = cell(Math.floor(n / columns.length), n % columns.length);
    const x = number(a, row[0], column[0]);
    const y = number(b, row[1], column[1]);
    found[n] = x === y ? 0 : y - x;
    if (!Number.isFinite(found[n])) found[n] = Number.NaN;
  }
  const matrix = matrixOf(found, rows.length, columns.length);
  const forbidden = (r: number, c: number) => {
    const [row, column] = cell(r, c);
    return (
      !matrix.at(r, c) && // a mean reads what a part of it may
      [first, second].every(
        (head, side) => column[side]! < 0 || head.cell("masked", row[side]!, column[side]!) === -Infinity,
      )
    );
  };
  return { matrix, rows, columns, pairs, forbidden };
}

const LISTED = 10; // rows

// The rows of a head in which most weight moved, with the keys that gain and lose most.
export function Moves(props: PanelProps & { pair: Compared }) {
  const { pair, place, goto, words, glossary } = props;
  const [first, second] = pair.heads;
  const [found, moves] = useMemo(() => {
    const moved = difference(first, second, "weights");
    const all = (moved?.rows ?? []).map((label, row) => {
      const changes = moved!.columns.map((_, key) => moved!.matrix.at(row, key) || 0);
      const [a, b] = moved!.pairs?.queries[row] ?? [row, row];
      const ofSink = second!.drained(b) - first!.drained(a);
      return { label, row, changes, moved: [...changes, ofSink].reduce((sum, x) => sum + Math.abs(x) / 2, 0) };
    });
    return [moved, all.filter((one) => one.moved >= 0.005).sort((a, b) => b.moved - a.moved)] as const;
  }, [first, second]);
  if (!found || first!.scene.keyAxis.length < first!.scene.sourceAxis.length) return null;
  const { columns, pairs } = found;
  return (
    <section class="moves">
      <h2>
        What moved in {second!.unit.name}{" "}
        <Dim>
          from <bdi>{pair.names[0]}</bdi> to <bdi>{pair.names[1]}</bdi>
        </Dim>
      </h2>
      {moves.length ? (
        <Scrolling label="what moved">
          <table class="data">
            <thead>
              <tr>
                <th scope="col">row</th>
                <th scope="col" class="term" title={glossary.moved}>
                  moved
                </th>
                <th scope="col">{words.gains}</th>
                <th scope="col">{words.loses}</th>
              </tr>
            </thead>
            <tbody>
              {moves.slice(0, LISTED).map(({ label, row, changes, moved }) => (
                <tr key={row}>
                  <th scope="row">
                    <button
                      class="plain"
                      onClick={() =>
                        goto({ query: pairs ? pairs.queries[row]![place.spot.mask && 1] : row, key: null })
                      }
                    >
                      <Token label={label} />
                    </button>
                  </th>
                  <td data-moved-row={row}>{fixed(moved, 2)}</td>
                  {[Math.max(...changes), Math.min(...changes)].map((most) => (
                    <td key={most}>
                      {most > 0 && "+"}
                      {fixed(most, 2)} <Token label={columns[changes.indexOf(most)]} />
                    </td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </Scrolling>
      ) : (
        <p class="dim">{words.unmoved}</p>
      )}
      {moves.length > LISTED && (
        <Small>
          and {moves.length - LISTED} {words.less}
        </Small>
      )}
    </section>
  );
}

export function MatrixPanel(
  props: PanelProps & {
    sceneAt: (text: number, mask: number) => Scene | undefined;
    masks: string[];
    title: string;
    stageHelp: Record<string, string>;
    onPicture?: () => void; // shows the picture in place of the matrix
  },
) {
  const { scene, head, place, sceneAt, masks, title, stageHelp, words, act, glossary } = props;
  const { spot, stage, pinned } = place;
  const [lines, setLines] = useState(false);
  const views: View[] = [];
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
      other: [views[0]!, views[other]!],
    });
  } else views.push({ name: "", scene, head });
  const name = pinned && scene.headName(pinned.layer, pinned.head);
  if (pinned && name !== title) {
    const side = sceneAt(pinned.text, pinned.mask)!;
    const held = side.head(pinned.layer, pinned.head);
    const pin: View = { name: `pinned ${name}`, scene: side, head: held, held: 1 };
    views.push(pin, { name: `${title} − ${name}`, scene, head: null, other: [pin, { name: title, scene, head }] });
  }
  return (
    <section class="card matrix-panel" aria-label="matrix">
      <div class="bar">
        <HeadNav name={title} act={act} meaning={[glossary.head, head?.unit.chosen].filter(Boolean).join(" ")} />
        <span class="stages" role="group" aria-label="Stage">
          {scene.record.stages.map((name) => (
            <button
              key={name}
              title={glossary[name] ?? stageHelp[name]}
              aria-pressed={name === (lines ? "weights" : stage)}
              disabled={name !== (lines ? "weights" : shownStage(head, name))}
              onClick={() => act("show_stage", name)}
            >
              {stageName(scene, name)}
            </button>
          ))}
        </span>
        {props.onPicture && <button onClick={props.onPicture}>picture</button>}
        <button aria-pressed={lines} onClick={() => setLines(!lines)}>
          lines
        </button>
      </div>
      <div class="drawn">
        <div class={views.length > 1 ? "sides" : ""} inert={lines}>
          {views.map((view, n) => (
            <figure key={n} class={view.other ? "difference" : ""}>
              <figcaption>
                {view.name && (
                  <strong>
                    <bdi>{view.name}</bdi>
                  </strong>
                )}{" "}
                <Dim>{stageName(scene, shownStage(view.head, stage))}</Dim>{" "}
                <Exactness head={view.other ? null : view.head} words={words} />
                {(view.other || views.length === 1) && (
                  <span class="axes">
                    <Term title={glossary.query}>{words.reading} ↓</Term>{" "}
                    <Term title={glossary.key}>{words.goes} →</Term>
                  </span>
                )}
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
        {lines && <Lines {...props} />}
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

const WEIGHTS: Scale = { low: 0, high: 1, signed: false, shape: "sqrt" };

export function matrixProps(
  scene: Scene,
  head: Head,
  stage: string,
  scale: Scale | null = null, // of weights; null for all of them, from 0 to 1
): { props: HeatProps; matrix: Matrix; map: boolean } | null {
  const weights = scale ?? WEIGHTS;
  const map = head.map;
  const matrix = head.stage(stage) ?? (map || stage !== "weights" ? null : head.sparse());
  const label = `${head.unit.name} ${stage}`;
  if (matrix?.columns) {
    const masked = new Set(head.unit.masked);
    const known = head.stage("masked");
    const digits = digitsIn(stage, matrix);
    const { hatched } = scene.record;
    const forbidden =
      hatched || (known && (stage === "masked" || stage === "weights"))
        ? (r: number, c: number) =>
            (hatched ? matrix.at(r, c) === 0 : known!.at(r, c) === -Infinity && !(matrix.at(r, c) > 0)) &&
            !masked.has(r)
        : undefined;
    const say = (r: number, c: number) => {
      const value = matrix.at(r, c);
      const name = `${scene.queryAxis.name(r)} ← ${scene.keyAxis.name(c)}`;
      if (masked.has(r) && stage === "weights") return `${name}: masked`;
      if (forbidden?.(r, c)) return `${name}: ${NOT_ALLOWED}`;
      return `${name}: ${value === -Infinity ? NOT_ALLOWED : Number.isNaN(value) ? "not listed" : exactText(value)}`;
    };
    const text = (r: number, c: number, fewer?: number) =>
      head.stage(stage)
        ? cellText({ name: stage, digits: digits(fewer) }, matrix.at(r, c), masked.has(r))
        : digitsText(matrix.at(r, c), digits()).replace("nan", "");
    const props = {
      rows: scene.queryAxis.tokenLabels,
      columns: scene.keyAxis.tokenLabels,
      value: matrix.at,
      text,
      say,
      scale: stage === "weights" ? weights : scaleOf(matrix.data, true),
      label,
      forbidden,
      levels: scene.record.levels.length ? scene.record.levels : undefined,
      legend: "",
    };
    return { props, matrix, map: false };
  }
  if (!map) return null;
  // Of a short text, every run is one token.
  const { queryAxis, keyAxis } = scene;
  const single = map.matrix.rows === queryAxis.length && map.matrix.columns === keyAxis.length;
  const rows = single ? queryAxis.tokenLabels : runLabels(map.queries);
  const columns = single ? keyAxis.tokenLabels : runLabels(map.keys);
  const most = single ? weights.high : largest(map.matrix);
  const say = (r: number, c: number) => {
    const weight = map.matrix.at(r, c);
    const number =
      head.exact || map.forbidden(r, c) ? exactText(weight) : `${fixed(weight, 3)} (rounded to 3 decimals)`;
    return `${single ? "" : "queries "}${nameOf(rows[r]!)} ← ${single ? "" : "keys "}${nameOf(columns[c]!)}: ${number}`;
  };
  const props = {
    rows,
    columns,
    value: map.matrix.at,
    text: (r: number, c: number) => (single ? fixed(map.matrix.at(r, c), 2) : ""),
    say,
    scale: { ...weights, high: most || 1 },
    label: `${label}, map`,
    legend: single ? "" : "weights of runs on runs",
    forbidden: map.forbidden,
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

// The digits of cells of a stage, fewer of them where cells are too small; of weights, these are all behind the point.
function digitsIn(stage: string, matrix: Matrix) {
  const most = largest(matrix);
  return (fewer = 0) => digitsFor(most, stage === "weights" ? 2 : 2 - fewer);
}

// Pixels around the picture; those above two that stand above each other, and around each of these.
const FRAME = 156;
const ABOVE = 74;
const SIDE = 87;
const TALL = 560; // pixels of a matrix on a wider one of the screens where panels stand below each other

const runOf = (starts: number[], at: number) => Math.max(0, starts.findIndex((start) => start > at) - 1);

function MatrixView({
  view,
  scene: here,
  place,
  cursorKey,
  act,
  goto,
  at: pointedAt,
  hovered,
  setHovered,
  main,
  several,
  words,
  room,
}: PanelProps & {
  view: View;
  main: boolean;
  several: boolean;
}) {
  const { scene, head, other } = view;
  const { spot, stage } = place;
  const id = main ? "panel-matrix" : undefined;
  const half = several && !other && !stacked();
  // On a narrow screen, a matrix is as wide as that.
  const least = stacked() ? Math.min(innerWidth, TALL) : half ? 120 : 190;
  const height = Math.max(least, half ? (room - ABOVE) / 2 - SIDE : room - FRAME - (several ? SIDE / 2 : 0));
  // Where the cursor is on another side, or where a cell of that side is on this one.
  const across = (from: Scene, to: Scene, query: number, key: number): [number, number] => [
    from.on(to, "queries", query),
    from.on(to, "keys", key),
  ];
  const cursor = across(here, scene, spot.query, cursorKey ?? 0);
  // What the pointer is at, on the axes of this picture: −1 for a token that its side lacks.
  const pointed = hovered && across(pointedAt.scene, scene, pointedAt.query, pointedAt.key ?? -1);
  // The label of a row stands for its strongest key, and that of a column for its cell in the row of the cursor.
  const point = (side: View, query: number | null, key: number | null) =>
    setHovered(
      query === null && key === null
        ? null
        : { scene: side.scene, head: side.head, side: side.name, query: query ?? Math.max(0, cursor[0]), key },
    );
  const [first, second] = other ?? [view, view];
  const moved = useMemo(() => other && difference(first.head, second.head, stage), [first.head, second.head, stage]);
  const scale = weightScale(place, head);
  const shown = useMemo(
    () => head && matrixProps(scene, head, stage, scale),
    [scene, head, stage, scale.shape, scale.high],
  );
  if (other) {
    if (!moved) return <p class="dim">{words.difference}</p>;
    const { matrix, rows, columns, pairs, forbidden } = moved;
    const { at } = matrix;
    const digits = digitsIn(stage, matrix);
    // A cell of a side on the axes of the difference, and back to a side that has it.
    const joint = (from: Scene, query: number, key: number): [number, number] => {
      if (!pairs) return across(from, scene, query, key);
      const [a, b] = [first, second].map((side) => across(from, side.scene, query, key)) as Pair[];
      return [
        pairs.queries.findIndex(([i, j]) => i === a[0] || j === b[0]),
        pairs.keys.findIndex(([i, j]) => (i < 0 ? j === b[1] : i === a[1])),
      ];
    };
    const own = joint(here, spot.query, cursorKey ?? 0);
    const apart = (query: number, key: number): [View, number, number] => {
      if (!pairs) return [second, query, key];
      // the chosen side, unless it lacks the token
      const own = first.scene === here ? 0 : 1;
      const side = pairs.keys[key]![own] < 0 ? 1 - own : own;
      return [side ? second : first, pairs.queries[query]![side]!, pairs.keys[key]![side]!];
    };
    return (
      <Heat
        rows={rows}
        columns={columns}
        value={at}
        text={(r, c, fewer) => (Number.isNaN(at(r, c)) ? "–" : digitsText(at(r, c), digits(fewer)))}
        say={(r, c) =>
          `${nameOf(rows[r]!)} ← ${nameOf(columns[c]!)}: ${forbidden(r, c) ? NOT_ALLOWED : Number.isNaN(at(r, c)) ? words.single : exactText(at(r, c))}`
        }
        forbidden={forbidden}
        scale={
          stage === "weights" ? { low: -1, high: 1, signed: true, shape: place.shape } : scaleOf(matrix.data, true)
        }
        label="difference"
        height={height}
        digits={place.digits}
        cursor={own}
        pointed={hovered && joint(pointedAt.scene, pointedAt.query, pointedAt.key ?? -1)}
        onCursor={(query, key) => {
          const [side, ...cell] = apart(query, key);
          if (side.held || !pairs) return goto({ query, key });
          goto({ mask: side.scene.record.mask, query: cell[0], key: cell[1] });
        }}
        onHover={(row, column) =>
          row === null && column === null
            ? setHovered(null)
            : point(...apart(row ?? Math.max(0, own[0]), column ?? Math.max(0, own[1])))
        }
      />
    );
  }
  const found = shown;
  if (!found) return <p class="dim">{words.none}</p>;
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
          pointed={pointed && [runOf(queries, pointed[0]), runOf(keys, pointed[1])]}
          onCursor={(r, c) => goto({ query: queries[r]!, key: keys[c]! })}
          onHover={(r, c) => point(view, r === null ? r : queries[r]!, c === null ? c : keys[c]!)}
        />
      </>
    );
  }
  return (
    <Heat
      {...found.props}
      id={id}
      legend={several ? "" : found.props.legend}
      height={height}
      digits={place.digits}
      cursor={cursor}
      pointed={pointed}
      onRow={(query) => view.held || goto({ mask: scene.record.mask, query, key: null })}
      onColumn={(key) => view.held || act("column", key)}
      onCursor={(query, key) => {
        if (!view.held) return goto({ mask: scene.record.mask, query, key });
        [query, key] = across(scene, here, query, key);
        goto({ query, key });
      }}
      onHover={(row, column) => point(view, row, column)}
    />
  );
}
