// A walk through the heads of a model: layers × heads, the matrix of a head, its row, and the text.
import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { arithmetic, weightText } from "./cell";
import { type Data, type Matrix, matrixOf } from "./data";
import { digitsFor, digitsText, exactText, fixed, ramp, scaleOf } from "./format";
import { Heat, type HeatProps } from "./heat";
import { type Head, Scene, type SceneData } from "./model";
import { Bar, cellText, runLabels, Spans } from "./parts";
import { apply, type Bounds, fit, fragment, type Place, placeOf, type Spot } from "./place";
import { asCsv, asNumpy, asSvg, copy, download } from "./save";
import { TextPanel } from "./text";
import { useTheme } from "./theme";

interface Key {
  name: string;
  keys: string[];
  spelled: string;
  help: string;
  group: string;
}

interface WalkNode {
  texts: string[];
  masks: string[];
  keys: Key[];
  scenes: SceneData[];
  stageHelp: Record<string, string>;
  phrases: Record<string, string>;
  words: Record<string, string>;
  browserKeys: Record<string, string>;
}

export function Walk({ node, data }: { node: WalkNode; data: Data }) {
  const [scenes] = useState(
    () => new Map(node.scenes.map((scene) => [`${scene.text},${scene.mask}`, new Scene(scene, data)])),
  );
  const sceneAt = (text: number, mask: number) => scenes.get(`${text},${mask}`) ?? scenes.get(`${text},0`);
  const boundsOf = (spot: Spot): Bounds => {
    const scene = sceneAt(spot.text, spot.mask)!;
    const { roles, numbers, layers, heads, stages } = scene.data;
    return {
      texts: node.texts.length,
      masks: node.masks.length,
      layers: layers.length,
      heads: heads.length,
      queries: scene.queries.length,
      keys: scene.keys.length,
      stages,
      displays: ["thumbnails", ...(roles ? ["roles"] : []), ...numbers.map((n) => n.name)],
    };
  };
  const [place, setPlace] = useState<Place>(() => {
    const scene = sceneAt(0, 0)!;
    const [layer, head] = scene.data.first;
    const start: Place = {
      spot: { text: 0, mask: 0, layer, head, query: 0, key: null },
      stage: "weights",
      display: "thumbnails",
      pinned: null,
      history: [],
      needle: "",
      predictions: scene.data.predictions.length > 0,
    };
    const found = placeOf(location.hash, start, sceneAt);
    return fit(found, boundsOf(found.spot));
  });
  const [hovered, setHovered] = useState<number | null>(null);
  const [help, setHelp] = useState(false);
  const [copying, setCopying] = useState(false);
  const [said, say] = useState("");
  const needle = useRef<HTMLInputElement>(null);
  const { spot } = place;
  const scene = sceneAt(spot.text, spot.mask)!;
  const bounds = boundsOf(spot);
  const head = scene.head(spot.layer, spot.head);
  const key = spot.key ?? head?.best(spot.query) ?? null;
  const found = useMemo(() => {
    const wanted = place.needle.toLocaleLowerCase();
    const matches = wanted
      ? scene.queries.labels.flatMap((l, n) => (l.name.toLocaleLowerCase().includes(wanted) ? [n] : []))
      : [];
    return new Set(matches);
  }, [place.needle, scene]);

  useEffect(() => {
    try {
      history.replaceState(null, "", fragment(place, scene));
    } catch {
      // a page in a frame without an address
    }
  }, [place, scene]);
  useEffect(() => {
    const changed = () =>
      setPlace((now) => {
        const next = placeOf(location.hash, now, sceneAt);
        return fit(next, boundsOf(next.spot));
      });
    window.addEventListener("hashchange", changed);
    return () => window.removeEventListener("hashchange", changed);
  }, []);

  const match = (step: number): number | null => {
    const all = [...found];
    if (!all.length) return null;
    return step > 0
      ? (all.find((n) => n > spot.query) ?? all[0]!)
      : (all.findLast((n) => n < spot.query) ?? all.at(-1)!);
  };
  const act = (name: string, value?: number | string | null) => {
    if (name === "find") needle.current?.focus();
    else if (name === "help") setHelp(true);
    else if (name === "copy") setCopying(true);
    else if (name.endsWith("_panel")) document.getElementById(`panel-${name.slice(0, -6)}`)?.focus();
    else if (name === "next_match" || name === "previous_match") {
      const next = match(name === "next_match" ? 1 : -1);
      setPlace((now) => apply(now, "found", bounds, next));
    } else if (name === "zoom_in" || name === "zoom_out") return;
    else if (name === "follow") {
      const target = key === null || !scene.data.aligned ? undefined : scene.queries.find(scene.keys.positions[key]!);
      setPlace((now) => apply(now, "follow", bounds, target));
    } else
      setPlace((now) => {
        const next = apply(now, name, bounds, value);
        return fit(next, boundsOf(next.spot));
      });
  };
  const acting = useRef(act);
  acting.current = act;
  useEffect(() => {
    const table = new Map(node.keys.flatMap((one) => one.keys.map((k): [string, string] => [k, one.name])));
    const pressed = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
      if (/^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName)) return;
      if (/^(BUTTON|SUMMARY)$/.test(target.tagName) && (event.key === "Enter" || event.key === " ")) return;
      const name = table.get(node.browserKeys[event.key] ?? event.key);
      if (!name) return;
      if (target.classList.contains("scrolling") && /^(page_|up|down|left|right)/.test(name)) return;
      event.preventDefault();
      acting.current(name);
    };
    document.addEventListener("keydown", pressed);
    return () => document.removeEventListener("keydown", pressed);
  }, [node]);

  const title = scene.headName(spot.layer, spot.head);
  const command = `${scene.data.command} --layer ${scene.data.layers[spot.layer]} --head ${scene.data.heads[spot.head]} --query ${scene.queries.positions[spot.query]}`;
  const goto = (changes: Partial<Spot>) =>
    setPlace((now) => {
      const next = { ...now, spot: { ...now.spot, ...changes } };
      return fit(next, boundsOf(next.spot));
    });
  const panel = { scene, head, place, cursorKey: key, act, goto, hovered, setHovered, words: node.words };
  return (
    <div class="walk">
      <div class="controls card" role="toolbar" aria-label="Where you are">
        {node.texts.length > 1 && (
          <Choice
            label="text"
            items={node.texts.map((t, n) => `${n} ${t.slice(0, 40)}`)}
            at={spot.text}
            onChoose={(text) => goto({ text })}
          />
        )}
        {node.masks.length > 1 && (
          <Choice label="side" items={node.masks} at={spot.mask} onChoose={(mask) => goto({ mask })} />
        )}
        <span class="nav">
          <button type="button" onClick={() => act("previous_head")} aria-label="Previous head" title="[">
            ‹
          </button>
          <strong class="where" id="where">
            {title}
          </strong>
          <button type="button" onClick={() => act("next_head")} aria-label="Next head" title="]">
            ›
          </button>
        </span>
        <span class="stages" role="group" aria-label="Stage">
          {scene.data.stages.map((stage) => (
            <button
              key={stage}
              type="button"
              title={node.stageHelp[stage]}
              aria-pressed={stage === place.stage}
              onClick={() => setPlace({ ...place, stage })}
            >
              {stage}
            </button>
          ))}
        </span>
        <input
          ref={needle}
          type="search"
          placeholder="find a token"
          aria-label="Find a token"
          value={place.needle}
          onInput={(event) => setPlace({ ...place, needle: event.currentTarget.value })}
          onKeyDown={(event) => {
            if (event.key === "Enter") act(event.shiftKey ? "previous_match" : "next_match");
            if (event.key === "Escape" || event.key === "Enter") document.getElementById("panel-matrix")?.focus();
          }}
        />
        {place.needle && <span class="dim">{found.size} found</span>}
        <span class="tools">
          <button
            type="button"
            aria-pressed={place.pinned !== null}
            onClick={() => act("pin")}
            title="compare other heads with this one (c)"
          >
            {place.pinned ? `pinned ${scene.headName(place.pinned.layer, place.pinned.head)}` : "pin"}
          </button>
          <button type="button" onClick={() => act("copy")}>
            copy
          </button>
          <button type="button" onClick={() => act("help")}>
            keys
          </button>
        </span>
        <output class="hidden">{said}</output>
      </div>
      <div class="columns">
        <HeadsPanel {...panel} displays={bounds.displays} />
        <MatrixPanel {...panel} sceneAt={sceneAt} masks={node.masks} title={title} />
        <RowPanel {...panel} phrases={node.phrases} />
        <TextPanel
          scene={scene}
          head={head}
          query={spot.query}
          cursor={key}
          hovered={hovered}
          onQuery={(query) => goto({ query, key: null })}
          onHover={setHovered}
          found={found}
        />
        {scene.data.predictions.length > 0 && place.predictions && <Predictions scene={scene} />}
      </div>
      {help && <Help keys={node.keys} onClose={() => setHelp(false)} />}
      {copying && (
        <CopyDialog
          choices={copies(scene, head, place, key, command, node.stageHelp)}
          onClose={(done) => {
            say(done);
            setCopying(false);
          }}
        />
      )}
      <p class="dim command">
        <code>{command}</code>
      </p>
    </div>
  );
}

function Choice(props: { label: string; items: string[]; at: number; onChoose: (n: number) => void }) {
  return (
    <label>
      <span class="dim">{props.label}</span>{" "}
      <select value={props.at} onChange={(event) => props.onChoose(Number(event.currentTarget.value))}>
        {props.items.map((item, n) => (
          <option key={n} value={n}>
            {item}
          </option>
        ))}
      </select>
    </label>
  );
}

interface PanelProps {
  scene: Scene;
  head: Head | null;
  place: Place;
  cursorKey: number | null;
  act: (name: string, value?: number | string | null) => void;
  goto: (changes: Partial<Spot>) => void;
  hovered: number | null;
  setHovered: (query: number | null) => void;
  words: Record<string, string>;
}

const SMALL = 32; // cells of a thumbnail
const pictures = new WeakMap<Head, Map<string, HTMLCanvasElement | null>>();

// The largest weight in every cell of a small grid, so that nothing strong is lost.
function thumbnail(head: Head, theme: "light" | "dark"): HTMLCanvasElement | null {
  let known = pictures.get(head);
  if (!known) {
    known = new Map();
    pictures.set(head, known);
  }
  if (known.has(theme)) return known.get(theme)!;
  const matrix = head.picture();
  let canvas: HTMLCanvasElement | null = null;
  if (matrix?.rows && matrix.columns) {
    const rows = Math.min(SMALL, matrix.rows);
    const columns = Math.min(SMALL, matrix.columns);
    const most = new Float64Array(rows * columns).fill(Number.NaN);
    for (let r = 0; r < matrix.rows; r++)
      for (let c = 0; c < matrix.columns; c++) {
        const at = Math.floor((r * rows) / matrix.rows) * columns + Math.floor((c * columns) / matrix.columns);
        const value = matrix.at(r, c);
        if (!(most[at]! >= value) && !Number.isNaN(value)) most[at] = value;
      }
    const colours = ramp(theme, false);
    const image = new ImageData(columns, rows);
    most.forEach((value, n) => {
      image.data.set(colours[Math.round(Math.sqrt(Math.min(1, Math.max(0, value || 0))) * 256)]!, n * 4);
      image.data[n * 4 + 3] = 255;
    });
    canvas = document.createElement("canvas");
    canvas.width = columns;
    canvas.height = rows;
    canvas.getContext("2d")!.putImageData(image, 0, 0);
  }
  known.set(theme, canvas);
  return canvas;
}

function HeadsPanel({ scene, place, act, goto, displays }: PanelProps & { displays: string[] }) {
  const theme = useTheme();
  const { layers, heads, numbers, roles } = scene.data;
  const shown = numbers.find((one) => one.name === place.display);
  const values = shown ? scene.store.matrix(shown.values) : null;
  const strength = roles && place.display === "roles" ? scene.store.matrix(roles.strength) : null;
  const main = roles ? scene.store.raw(roles.main) : null;
  const role = (r: number, c: number) => Number(main?.[r * heads.length + c] ?? -1);
  const finite = values ? [...values.data].filter(Number.isFinite) : [];
  const digits = digitsFor(Math.max(0, ...finite.map(Math.abs)), 2);
  const scale = values
    ? { low: Math.min(...finite), high: Math.max(...finite), signed: false }
    : { low: 0, high: 1, signed: false };
  const row = (n: number | string) => ({ number: n === "mean" ? "mean" : `L${n}`, name: "" });
  const column = (n: number | string) => ({ number: n === "mean" ? "mean" : `H${n}`, name: "" });
  const page = theme === "dark" ? "#1c222c" : "#eceef1";
  const write = (r: number, c: number) => {
    if (strength && roles) return roles.letters[role(r, c)] ?? "·";
    return values && !Number.isNaN(values.at(r, c)) ? digitsText(values.at(r, c), digits) : "";
  };
  return (
    <section class="card heads-panel" aria-label="layers and heads">
      <div class="bar">
        <h2>Layers × heads</h2>
        <select
          aria-label="What every head shows"
          value={place.display}
          onChange={(event) => act("display", event.currentTarget.value)}
        >
          {displays.map((name) => (
            <option key={name} value={name}>
              {name.replace("_", " ")}
            </option>
          ))}
        </select>
      </div>
      <Heat
        id="panel-heads"
        rows={layers.map(row)}
        columns={heads.map(column)}
        value={strength?.at ?? values?.at ?? (() => Number.NaN)}
        text={write}
        say={(r, c) => {
          const name = scene.headName(r, c);
          if (strength) return `${name}: ${roles?.names[role(r, c)] ?? "no clear role"} ${fixed(strength.at(r, c), 2)}`;
          return values ? `${name}: ${place.display} ${exactText(values.at(r, c))}` : name;
        }}
        scale={scale}
        colours={strength && roles ? layers.map((_, r) => heads.map((_, c) => roles.colours[role(r, c)] ?? "")) : null}
        label="layers and heads"
        kind="head"
        limit={56}
        height={Math.max(160, Math.min(720, layers.length * 40 + 30))}
        cursor={[place.spot.layer, place.spot.head]}
        onCursor={(layer, head) => goto({ layer, head })}
        onEnter={() => document.getElementById("panel-matrix")?.focus()}
        legend={shown?.name.replace("_", " ")}
        paint={
          values || strength
            ? undefined
            : (g, r, c, x, y, size) => {
                const head = scene.head(r, c);
                const picture = head && thumbnail(head, theme);
                const inset = size > 12 ? 1.5 : 0.5;
                if (picture) g.drawImage(picture, x + inset, y + inset, size - 2 * inset, size - 2 * inset);
                else {
                  g.fillStyle = page;
                  g.fillRect(x + inset, y + inset, size - 2 * inset, size - 2 * inset);
                }
                if (head?.unit.chosen && size > 16) {
                  g.fillStyle = theme === "dark" ? "#ffa94d" : "#d9480f";
                  g.fillRect(x + size - 6, y + 2, 4, 4);
                }
              }
        }
      />
      {shown && <p class="dim small">{shown.meaning}</p>}
      {roles && strength && (
        <p class="small">
          {roles.names.map((name, n) => (
            <span key={name} title={roles.meanings[n]}>
              <Spans spans={[[roles.letters[n]!, "", 0, roles.colours[n]!], ` ${name}  `]} />
            </span>
          ))}
        </p>
      )}
    </section>
  );
}

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

function MatrixPanel(
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
      kind: "key",
      zero: stage === "weights",
      masked,
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
    kind: "map",
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
  const height = several ? 460 : 700;
  const onCursor = (query: number, key: number) => goto({ query, key });
  const cursor: [number, number] = [spot.query, cursorKey ?? 0];
  if (other) {
    const found = difference(other[0]?.stage(stage) ?? null, other[1]?.stage(stage) ?? null);
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
        kind="key"
        height={height}
        cursor={cursor}
        onCursor={onCursor}
      />
    );
  }
  const found = head && matrixProps(scene, head, stage);
  if (!found) return <p class="dim">This page does not hold this head{head ? `'s ${stage}` : ""}.</p>;
  if (found.map) {
    const { queries, keys } = head.map!;
    return (
      <>
        {stage !== "weights" && <p class="dim">{words.weights}</p>}
        <Heat
          {...found.props}
          id={id}
          height={height}
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
      cursor={cursor}
      onCursor={onCursor}
      onHover={(cell) => setHovered(cell ? cell[0] : null)}
    />
  );
}

function RowPanel({
  scene,
  head,
  place,
  cursorKey,
  goto,
  hovered,
  phrases,
  words,
}: PanelProps & { phrases: Record<string, string> }) {
  const query = hovered ?? place.spot.query;
  const own = query === place.spot.query;
  const key = own ? cursorKey : (head?.best(query) ?? null);
  const listed = head?.listed(query) ?? null;
  const statistics = head?.statistics(query) ?? [];
  const rest = head?.unlisted(query) ?? null;
  const measures = listed?.length ? Object.keys(listed[0]!.measures) : [];
  const most = Math.max(1e-9, ...(listed ?? []).map((one) => one.measures[head!.by] ?? 0));
  const exact = head?.exact ?? false;
  const write = (value: number, name: string) =>
    name === "weight" ? fixed(value, 3) : digitsText(value, digitsFor(Math.abs(value), 2));
  return (
    <section class="card row-panel" aria-label="row" id="panel-row" tabIndex={-1}>
      <h2>
        <span class="number">{scene.queries.labels[query]?.number}</span> <bdi>{scene.queries.labels[query]?.name}</bdi>{" "}
        <span class="dim">{own ? "" : "under the pointer"}</span>
      </h2>
      {head && key !== null && (
        <p class="arithmetic" data-arithmetic>
          <span class="dim">→ </span>
          <bdi>{scene.keys.name(key)}</bdi>
          <br />
          {arithmetic(head, query, key)}
        </p>
      )}
      <table class="data sources">
        <thead>
          <tr>
            <th scope="col">source</th>
            <td>
              <span class="hidden">bar</span>
            </td>
            {measures.map((name) => (
              <th scope="col" key={name}>
                {phrases[name] ?? name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {(listed ?? []).map((one, rank) => (
            <tr key={rank} class={own && one.key === key ? "current" : ""}>
              <td class="left">
                <button
                  type="button"
                  class="plain"
                  disabled={one.key === undefined}
                  onClick={() => goto({ query, key: one.key ?? null })}
                >
                  <span class="number">{scene.sources.labels[one.source]?.number}</span>{" "}
                  <bdi>{scene.sources.labels[one.source]?.name}</bdi>
                </button>
              </td>
              <td class="bars">
                <Bar share={head!.by === "weight" ? one.measures.weight! : (one.measures[head!.by] ?? 0) / most} />
              </td>
              {measures.map((name) => (
                <td key={name} data-measure={name} title={exact ? exactText(one.measures[name]!) : undefined}>
                  {write(one.measures[name]!, name)}
                </td>
              ))}
            </tr>
          ))}
          {rest !== null && (
            <tr class="dim">
              <td class="left" colSpan={2}>
                not listed
              </td>
              <td data-rest>{fixed(rest, 3)}</td>
            </tr>
          )}
        </tbody>
      </table>
      {!listed && head && <p class="dim">{words.absent}</p>}
      {head && head.leftOut.length > 0 && <p class="dim small">left out of the ranking: {head.leftOut.join(", ")}</p>}
      {statistics.length > 0 && (
        <dl class="statistics">
          {statistics
            .filter(([name]) => name in phrases)
            .map(([name, value]) => (
              <div key={name}>
                <dt>{phrases[name]}</dt>
                <dd data-statistic={name} title={exact ? exactText(value) : undefined}>
                  {fixed(value, name === "distance" ? 1 : 2)}
                </dd>
              </div>
            ))}
        </dl>
      )}
      {head && <p class="dim small">{words[exact ? "digits" : "rounded"]}</p>}
    </section>
  );
}

function Predictions({ scene }: { scene: Scene }) {
  return (
    <section class="card predictions" aria-label="predictions">
      <h2>Predictions</h2>
      {scene.data.predictions.map((one, n) => (
        <div key={n}>
          <p class="dim">
            <Spans spans={one.title} />
          </p>
          <table class="data">
            <tbody>
              {one.tokens.map((token, rank) => (
                <tr key={rank}>
                  <th scope="row">
                    <bdi>{token}</bdi>
                  </th>
                  <td class="bars">
                    <Bar share={one.probabilities[rank]!} />
                  </td>
                  <td>{weightText(one.probabilities[rank]!)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      ))}
    </section>
  );
}

function Dialog({ title, onClose, children }: { title: string; onClose: () => void; children: ComponentChildren }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog ref={dialog} aria-label={title} onClose={onClose}>
      <div class="bar">
        <h2>{title}</h2>
        <button type="button" onClick={() => dialog.current?.close()} aria-label="Close">
          ✕
        </button>
      </div>
      {children}
    </dialog>
  );
}

function Help({ keys, onClose }: { keys: Key[]; onClose: () => void }) {
  const groups = [...new Set(keys.map((one) => one.group))];
  return (
    <Dialog title="Keys" onClose={onClose}>
      <div class="help">
        {groups.map((group) => (
          <section key={group}>
            <h3>{group}</h3>
            <dl class="facts">
              {keys
                .filter((one) => one.group === group)
                .map((one) => (
                  <div key={one.name}>
                    <dt>
                      <kbd>{one.spelled}</kbd>
                    </dt>
                    <dd>{one.help}</dd>
                  </div>
                ))}
            </dl>
          </section>
        ))}
      </div>
    </Dialog>
  );
}

interface CopyChoice {
  name: string;
  text?: () => string;
  save?: () => void;
}

function copies(
  scene: Scene,
  head: Head | null,
  place: Place,
  key: number | null,
  command: string,
  help: Record<string, string>,
): CopyChoice[] {
  const found = head && matrixProps(scene, head, place.stage);
  const choices: CopyChoice[] = [{ name: "command that shows this place", text: () => command }];
  if (!head || !found) return choices;
  const { props, matrix, map } = found;
  const { query } = place.spot;
  const file = `${head.unit.name.replace(" ", "-")}-${map ? "map" : place.stage}`;
  if (!map && key !== null)
    choices.push({ name: "this cell", text: () => `${props.say(query, key)}\n${arithmetic(head, query, key)}\n` });
  if (!map) choices.push({ name: "this row as CSV", text: () => asCsv(props.rows, props.columns, matrix, query) });
  const subtitle = map ? "map of weights between runs of tokens" : (help[place.stage] ?? "");
  choices.push(
    { name: "matrix as CSV", text: () => asCsv(props.rows, props.columns, matrix) },
    { name: "matrix as NumPy", text: () => asNumpy(matrix) },
    {
      name: "save the matrix as a figure (SVG)",
      save: () =>
        download(
          asSvg(props, `${head.unit.name} ${map ? "map" : place.stage}`, subtitle),
          `${file}.svg`,
          "image/svg+xml",
        ),
    },
  );
  return choices;
}

function CopyDialog({ choices, onClose }: { choices: CopyChoice[]; onClose: (said: string) => void }) {
  return (
    <Dialog title="Copy or save" onClose={() => onClose("")}>
      <div class="choices">
        {choices.map((choice) => (
          <button
            key={choice.name}
            type="button"
            onClick={async () => {
              if (choice.save) choice.save();
              else if (!(await copy(choice.text!())))
                return onClose(`${choice.name}: the browser did not let this page copy`);
              onClose(`${choice.name}: done`);
            }}
          >
            {choice.name}
          </button>
        ))}
      </div>
    </Dialog>
  );
}
