// Pictures with maps over them: the faint picture, and the colour of each patch by its share of a row of weights.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Data, Ref } from "./data";
import { Dim, HeadNav, Small, type Tree, tree } from "./elements";
import { colourOf, exactText, palette, place as placeOn, type Rgb, type Scale, surface, type Theme } from "./format";
import { canvasOf, inked, penOf, Ramp, STEPS } from "./heat";
import type { Head, Scene } from "./model";
import type { PanelProps } from "./panel";
import { clamp } from "./spot";
import { theme as currentTheme } from "./theme";

export interface Pixels {
  width: number;
  height: number;
  data: Uint8Array; // red, green and blue
}

const known = new Map<Ref, Pixels>();

// A picture as container.picture stores it: differences from the row above.
export function pixelsOf(data: Data, ref: Ref): Pixels {
  const found = known.get(ref);
  if (found) return found;
  const [height, width] = data.shape(ref) as [number, number, number];
  const bytes = Uint8Array.from(data.raw(ref) as Uint8Array);
  for (let i = width * 3; i < bytes.length; i++) bytes[i]! += bytes[i - width * 3];
  const pixels = { width, height, data: bytes };
  known.set(ref, pixels);
  return pixels;
}

function plain({ width, height, data }: Pixels): HTMLCanvasElement {
  const image = new ImageData(width, height);
  for (let i = 0, at = 0; i < data.length; i += 3, at += 4)
    image.data.set([data[i]!, data[i + 1]!, data[i + 2]!, 255], at);
  return canvasOf(image);
}

type Map2 = { rows: number; columns: number; at: (row: number, column: number) => number };

// The pixels of a picture under a map, as views/pictures.py mixes them.
function covered({ width, height, data }: Pixels, map: Map2, scale: Scale, theme: Theme): HTMLCanvasElement {
  const { colour, brightness, faintest, steep, fullest } = palette.mixing;
  const background = surface(theme, "background");
  const patches: [Rgb, number][] = [];
  for (let r = 0; r < map.rows; r++)
    for (let c = 0; c < map.columns; c++) {
      const at = placeOn(scale, map.at(r, c));
      patches.push(
        at ? [colourOf(theme, scale, map.at(r, c))!, Math.min(fullest, faintest + steep * at)] : [[0, 0, 0], 0],
      );
    }
  const image = new ImageData(width, height);
  for (let y = 0, i = 0; y < height; y++) {
    const row = Math.floor((y * map.rows) / height) * map.columns;
    for (let x = 0; x < width; x++, i++) {
      const [tint, cover] = patches[row + Math.floor((x * map.columns) / width)]!;
      const grey = 0.299 * data[i * 3]! + 0.587 * data[i * 3 + 1]! + 0.114 * data[i * 3 + 2]!;
      for (let n = 0; n < 3; n++) {
        const below = (grey + (data[i * 3 + n]! - grey) * colour) * brightness + background[n]! * (1 - brightness);
        image.data[i * 4 + n] = below * (1 - cover) + tint[n]! * cover;
      }
      image.data[i * 4 + 3] = 255;
    }
  }
  return canvasOf(image);
}

// As views/pictures.py writes shares.
export function percent(share: number): string {
  const one = (share >= 0.995 && share < 0.9995) || (share >= 0.00995 && share < 0.0995);
  return `${(100 * share).toFixed(one ? 1 : share >= 0.0995 ? 0 : 2)} %`;
}

interface CanvasProps {
  pixels: Pixels;
  map?: Map2; // none of a bare picture
  scale: Scale;
  size: number; // pixels of the longer side
  query: [number, number] | null;
  pointed: [number, number] | null;
  label: string;
  id?: string;
  bare?: boolean; // the picture without its map
  onPoint?: (patch: [number, number] | null) => void;
  onChoose?: (row: number, column: number) => void;
}

export function PictureCanvas(props: CanvasProps) {
  const { pixels, map, scale, size, query, pointed, label, id, bare, onPoint, onChoose } = props;
  const theme = currentTheme();
  const box = useRef<HTMLCanvasElement>(null);
  const drawn = useMemo(
    () => (bare ? plain(pixels) : covered(pixels, map!, scale, theme)),
    [pixels, map, scale.high, scale.shape, theme, bare],
  );
  const factor = size / Math.max(pixels.width, pixels.height);
  const width = Math.round(pixels.width * factor);
  const height = Math.round(pixels.height * factor);
  useEffect(() => {
    const canvas = box.current!;
    const g = penOf(canvas, width, height);
    g.imageSmoothingEnabled = bare === true;
    g.drawImage(drawn, 0, 0, width, height);
    const frame = (patch: [number, number] | null, thick: number) => {
      if (!patch) return;
      const [x, y] = [(patch[1] * width) / map!.columns, (patch[0] * height) / map!.rows];
      inked(g, theme, thick, () => g.strokeRect(x, y, width / map!.columns, height / map!.rows));
    };
    frame(query, 2);
    frame(pointed, 1);
  });
  const at = (event: MouseEvent): [number, number] => {
    const seen = box.current!.getBoundingClientRect();
    const at = (share: number, count: number) => clamp(Math.floor(share * count), count);
    return [
      at((event.clientY - seen.top) / seen.height, map!.rows),
      at((event.clientX - seen.left) / seen.width, map!.columns),
    ];
  };
  return (
    <canvas
      ref={box}
      id={id}
      class="picture-canvas"
      style={{ width: `${width}px`, aspectRatio: `${width}/${height}`, cursor: onChoose ? "pointer" : undefined }}
      role="img"
      aria-label={label}
      tabIndex={onChoose ? 0 : undefined}
      onPointerMove={(event) => onPoint?.(at(event))}
      onPointerLeave={() => onPoint?.(null)}
      onClick={(event) => onChoose?.(...at(event))}
      onKeyDown={(event) => {
        const step = STEPS[event.key];
        if (!step || !onChoose || event.ctrlKey || event.metaKey || event.altKey) return;
        event.preventDefault();
        event.stopPropagation();
        const from = query ?? [Math.floor(map!.rows / 2), Math.floor(map!.columns / 2)];
        const to = (n: 0 | 1, count: number) => clamp(from[n] + (query ? step[n] : 0), count);
        onChoose(to(0, map!.rows), to(1, map!.columns));
      }}
    />
  );
}

export interface PicturesNode {
  caption: Tree[];
  maps: {
    title: Tree[];
    label: string;
    pixels: Ref;
    weights: Ref;
    beside: [string, string][];
    facts: string[];
    query: [number, number] | null;
    scale: Scale;
  }[];
  relative: string;
  facts: string;
  across: number | null;
}

// Maps that a report shows outside of a walk: the picture, then one map after the other, or thumbnails of all heads.
export function Pictures({ node, data }: { node: PicturesNode; data: Data }) {
  const small = node.across !== null;
  return (
    <section class="pictures">
      <p class="text">{node.caption.map(tree)}</p>
      <div class="picture-list" style={small ? { gridTemplateColumns: `repeat(${node.across}, max-content)` } : {}}>
        {node.maps.map((one, n) => {
          const pixels = pixelsOf(data, one.pixels);
          const map = data.matrix(one.weights);
          const shown = { pixels, map, scale: one.scale, query: one.query, pointed: null };
          const seen = !small && node.maps.findIndex((other) => other.pixels["@"] === one.pixels["@"]) === n;
          return [
            seen && (
              <figure key={`seen ${n}`}>
                <figcaption class="dim">{palette.original}</figcaption>
                <PictureCanvas {...shown} size={300} query={null} label={palette.original} bare />
              </figure>
            ),
            <figure key={n}>
              <figcaption>{one.title.map(tree)}</figcaption>
              <PictureCanvas {...shown} size={small ? 84 : 300} label={one.label} />
              {!small && (
                <p class="shares">
                  {one.beside.map(([name, share]) => (
                    <span key={name} class="item">
                      {name} <b>{share}</b>
                    </span>
                  ))}
                </p>
              )}
              <Small>{one.facts.join(small ? " " : " · ")}</Small>
            </figure>,
          ];
        })}
      </div>
      {small && <Small>below each: {node.facts}</Small>}
      <Ramp
        scale={node.relative ? { ...node.maps[0]!.scale, high: 1 } : node.maps[0]!.scale}
        legend={node.relative ? `1: ${node.relative}` : palette.patch}
      />
    </section>
  );
}

const maps = new WeakMap<Head, Map<string, Map2 | null>>();

// A row of a head as a map on a picture of its text; null if the page does not hold the row.
export function mapOf(head: Head, grid: number, query: number): Map2 | null {
  const found = maps.get(head) ?? new Map<string, Map2 | null>();
  maps.set(head, found);
  const name = `${grid} ${query}`;
  if (!found.has(name)) {
    const weights = head.wholeRow(query);
    const { shape, sources } = head.scene.record.pictures!.grids[grid]!;
    const [rows, columns] = shape;
    const at = (r: number, c: number) => {
      const source = sources[r * columns + c]!;
      return source < 0 ? Number.NaN : weights![source]!;
    };
    found.set(name, weights ? { rows, columns, at } : null);
  }
  return found.get(name)!;
}

// The maps of all pictures of a text in one square: the frames of a video row by row.
export function montage(head: Head, query: number): Map2 | null {
  const all = head.scene.record.pictures!.grids.map((_, n) => mapOf(head, n, query));
  const first = all[0];
  if (!first || all.length < 2) return first ?? null;
  const side = Math.ceil(Math.sqrt(all.length));
  const rows = Math.max(...all.map((map) => map?.rows ?? 0));
  const columns = Math.max(...all.map((map) => map?.columns ?? 0));
  return {
    rows: rows * Math.ceil(all.length / side),
    columns: columns * side,
    at: (r, c) => {
      const map = all[Math.floor(r / rows) * side + Math.floor(c / columns)];
      return map && r % rows < map.rows && c % columns < map.columns ? map.at(r % rows, c % columns) : Number.NaN;
    },
  };
}

export const pictureScale = (scene: Scene, shape: Scale["shape"]): Scale => ({
  low: 0,
  high: scene.record.pictures!.high,
  signed: false,
  shape,
});

// The share of a row on each kind of token: patches, and what stands beside the picture.
export function sharesOf(head: Head, query: number): [string, number][] {
  const weights = head.wholeRow(query);
  if (!weights) return [];
  const sink = head.statistics(query).find(([name]) => name === "sink");
  const shares = head.scene.record.pictures!.kinds.map(([name, sources]): [string, number] => [
    name,
    sources.reduce((sum, source) => sum + weights[source]!, 0),
  ]);
  return sink ? [...shares, ["sink", sink[1]]] : shares;
}

// Entropy in bits, mean distance in patches from a query that is a patch, and the share outside of pictures.
export function summaryOf(head: Head, query: number): string {
  const weights = head.wholeRow(query);
  if (!weights) return "";
  let entropy = 0;
  for (const weight of weights) if (weight > 0) entropy -= weight * Math.log2(weight);
  const said = [`entropy ${entropy.toFixed(2)} bits`];
  const { grids } = head.scene.record.pictures!;
  let inside = 0;
  for (const [n, { shape, sources }] of grids.entries()) {
    const map = mapOf(head, n, query)!;
    const from = patchOf(head.scene, n, query);
    let sum = 0;
    let far = 0;
    for (let r = 0; r < shape[0]; r++)
      for (let c = 0; c < shape[1]; c++) {
        if (sources[r * shape[1] + c]! < 0) continue;
        sum += map.at(r, c);
        if (from) far += map.at(r, c) * Math.hypot(r - from[0], c - from[1]);
      }
    inside += sum;
    if (from && sum > 0) said.push(`mean distance ${(far / sum).toFixed(1)} patches`);
  }
  return [...said, `${percent(Math.max(0, 1 - inside))} outside the picture`].join(" · ");
}

// The patch that a query is on a picture.
export function patchOf(scene: Scene, grid: number, query: number): [number, number] | null {
  const { shape, sources } = scene.record.pictures!.grids[grid]!;
  const at = sources.indexOf(scene.queryAxis.tokenPositions[query]!);
  return at < 0 ? null : [Math.floor(at / shape[1]), at % shape[1]];
}

const FRAME = 215; // pixels around the pictures of the panel

export function PicturePanel(props: PanelProps & { title: string; onMatrix: () => void }) {
  const { scene, head, place, act, goto, room, title, words, onMatrix } = props;
  const [pointed, setPointed] = useState<[number, [number, number]] | null>(null);
  const { query } = place.spot;
  const { grids } = scene.record.pictures!;
  const scale = pictureScale(scene, place.shape);
  // Without sinks, the scale ends at the largest patch.
  const row = place.sinks ? null : head?.wholeRow(query);
  const largest = row && Math.max(...grids.flatMap(({ sources }) => sources.map((source) => row[source] ?? 0)));
  if (largest) scale.high = largest;
  const size = Math.max(160, Math.min(grids.length > 1 ? 260 : 720, room - FRAME));
  const beside = scene.record.pictures!.kinds.filter((_, n) => n >= grids.length);
  const shares = head ? sharesOf(head, query) : [];
  const say = () => {
    if (!pointed || !head) return "";
    const [grid, [r, c]] = pointed;
    const weight = mapOf(head, grid, query)?.at(r, c) ?? Number.NaN;
    const known = `${percent(weight)}${head.exact ? ` (${exactText(weight)})` : ""} of the row`;
    return `${grids[grid]!.name} row ${r}, column ${c}: ${Number.isNaN(weight) ? "no token" : known}`;
  };
  return (
    <section class="card matrix-panel picture-panel" aria-label="picture">
      <div class="bar">
        <HeadNav name={title} act={act} />
        <span>
          <Dim>weights of</Dim> <bdi>{scene.queryAxis.word(query)}</bdi>
        </span>
        <span class="stages">
          <button aria-pressed="true">picture</button>
          <button onClick={onMatrix}>matrix</button>
        </span>
      </div>
      <div class="picture-list">
        {grids.map((grid, n) => {
          const map = head && mapOf(head, n, query);
          if (!map)
            return (
              <p key={n} class="dim">
                {words.none}
              </p>
            );
          return (
            <PictureCanvas
              key={n}
              id={n ? undefined : "panel-matrix"}
              pixels={pixelsOf(scene.store, grid.pixels)}
              map={map}
              scale={scale}
              size={size}
              query={patchOf(scene, n, query)}
              pointed={pointed?.[0] === n ? pointed[1] : null}
              label={`${grid.name}: weights of ${title}${words.patch}`}
              onPoint={(patch) => setPointed(patch && [n, patch])}
              onChoose={(r, c) => {
                const source = grid.sources[r * grid.shape[1] + c]!;
                const to = source < 0 ? undefined : scene.queryAxis.find(source);
                if (to !== undefined) goto({ query: to, key: null });
              }}
            />
          );
        })}
        <PictureCanvas
          pixels={pixelsOf(scene.store, grids[0]!.pixels)}
          scale={scale}
          size={120}
          query={null}
          pointed={null}
          label={palette.original}
          bare
        />
      </div>
      <p class="shares">
        {shares.map(([name, share]) => (
          <span key={name} class="item">
            {name} <b data-share={name}>{percent(share)}</b>
          </span>
        ))}
        {beside
          .filter(([, sources]) => sources.length === 1)
          .map(([name, sources]) => {
            const to = scene.queryAxis.find(sources[0]!);
            return (
              to !== undefined && (
                <button key={name} aria-pressed={to === query} onClick={() => goto({ query: to, key: null })}>
                  weights of {name}
                </button>
              )
            );
          })}
      </p>
      <p class="dim small" data-summary>
        {head ? summaryOf(head, query) : ""}
      </p>
      <p class="said-patch" aria-live="polite">
        {say()}
      </p>
      <Ramp scale={scale} legend={palette.patch} />
    </section>
  );
}
