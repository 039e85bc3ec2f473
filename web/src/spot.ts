// Where one is in a walk, what an action does to that, and how the page's address says it (attnscope/views/walk/place.py).
import { palette, type Shape } from "./format";
import type { Scene } from "./model";

export interface Spot {
  text: number;
  mask: number;
  layer: number;
  head: number;
  query: number;
  key: number | null;
}

export interface Place {
  spot: Spot;
  stage: string;
  display: string;
  pinned: Spot | null;
  history: Spot[];
  needle: string;
  predictions: boolean;
  digits: boolean;
  shape: Shape; // how colours follow weights
  sinks: boolean; // the scale of weights reaches those on sinks
  read: boolean; // panels show who reads the key, not what the query reads
  touched: boolean; // a token or a cell was chosen
  headChosen: boolean; // the head was chosen after the cell
}

export interface Bounds {
  texts: number;
  masks: number;
  layers: number;
  heads: number;
  has: (layer: number, head: number) => unknown; // whether the page has a head
  first: [number, number]; // the head to go to in place of one that it lacks
  queries: number;
  keys: number;
  stages: string[];
  displays: string[];
}

export const LENS = "lens"; // what the panel of heads shows from the first choice of a token on
export const clamp = (n: number, count: number) => Math.max(0, Math.min(n, count - 1));
const turn = (n: number, count: number) => ((n % count) + count) % count;
const same = (a: Spot, b: Spot) => (Object.keys(a) as (keyof Spot)[]).every((name) => a[name] === b[name]);
const cycle = (items: string[], item: string, step: number) =>
  items[turn(Math.max(0, items.indexOf(item)) + step, items.length)]!;

export function fitSpot(spot: Spot, b: Bounds): Spot {
  const [layer, head] = b.has(spot.layer, spot.head) ? [spot.layer, spot.head] : b.first;
  return {
    text: clamp(spot.text, b.texts),
    mask: clamp(spot.mask, b.masks),
    layer,
    head,
    query: clamp(spot.query, b.queries),
    key: spot.key === null ? null : clamp(spot.key, b.keys),
  };
}

export function fit(place: Place, b: Bounds): Place {
  return {
    ...place,
    spot: fitSpot(place.spot, b),
    pinned: place.pinned && fitSpot(place.pinned, b),
    stage: b.stages.includes(place.stage) ? place.stage : b.stages.at(-1)!,
    display: b.displays.includes(place.display) ? place.display : b.displays[0]!,
  };
}

// The same place once a head, a token or a cell is chosen.
// From the first token that is chosen on, heads show the lens; on pictures they go on showing maps, and roles stay.
export function touch(place: Place, before: Place, pictured: boolean, headChosen: boolean): Place {
  const { spot } = place;
  const sameCell = spot.query === before.spot.query && spot.key === before.spot.key;
  const chosen = { ...place, headChosen: headChosen || (sameCell && place.headChosen) };
  if (place.touched || sameCell) return chosen;
  return { ...chosen, touched: true, display: place.display === "roles" || pictured ? place.display : LENS };
}

export function visit(place: Place, spot: Spot): Place {
  return same(spot, place.spot) ? place : { ...place, spot, history: [...place.history, place.spot].slice(-500) };
}

// `value`: the next match for a search, the display to show.
export function apply(place: Place, name: string, b: Bounds, value?: number | string | null): Place {
  const { spot } = place;
  const at = (changes: Partial<Spot>): Place => ({ ...place, spot: { ...spot, ...changes } });
  const move = (rows: number, columns: number): Place => {
    const key = spot.key !== null || !columns ? spot.key : 0;
    return at({
      query: clamp(spot.query + rows, b.queries),
      key: key === null ? null : clamp(key + columns, b.keys),
    });
  };
  const head = (step: number): Place => {
    let { layer, head } = spot;
    do {
      const n = turn(layer * b.heads + head + step, b.layers * b.heads);
      [layer, head] = [Math.floor(n / b.heads), n % b.heads];
    } while (!b.has(layer, head));
    return at({ layer, head });
  };
  const by = /^previous/.test(name) ? -1 : 1;
  const steps: Record<string, () => Place> = {
    left: () => move(0, -1),
    right: () => move(0, 1),
    up: () => move(-1, 0),
    down: () => move(1, 0),
    first_key: () => at({ key: 0 }),
    last_key: () => at({ key: b.keys - 1 }),
    first_query: () => at({ query: 0 }),
    last_query: () => at({ query: b.queries - 1 }),
    strongest: () => at({ key: null }),
    head: () => head(by),
    layer: () => at({ layer: clamp(spot.layer + by, b.layers) }),
    text: () => at({ text: turn(spot.text + by, b.texts) }),
    show_stage: () => ({ ...place, stage: value as string }),
    column: () => ({ ...at({ key: value as number }), read: true }),
    ["stage" as string]: () =>
      // a name of the data, where those of places are shortened
      ({ ...place, stage: cycle(b.stages, place.stage, by) }),
    mask: () => at({ mask: value == null ? turn(spot.mask + by, b.masks) : (value as number) }),
    display: () => ({ ...place, display: (value as string) || cycle(b.displays, place.display, 1) }),
    roles: () => ({ ...place, display: place.display === "roles" ? LENS : "roles" }),
    digits: () => ({ ...place, digits: !place.digits }),
    scale: () => ({ ...place, shape: cycle(palette.shapes, place.shape, 1) as Shape }),
    sinks: () => ({ ...place, sinks: !place.sinks }),
    direction: () => ({ ...at({ key: (value as number | null) ?? spot.key }), read: !place.read }),
    // The cell stays where it is, so that other heads are compared with it.
    pin: () => (place.pinned ? { ...place, pinned: null } : { ...at({ key: value as number | null }), pinned: spot }),
    swap: () => (place.pinned ? { ...place, spot: place.pinned, pinned: spot } : place),
    predictions: () => ({ ...place, predictions: !place.predictions }),
    back: () =>
      place.history.length ? { ...place, spot: place.history.at(-1)!, history: place.history.slice(0, -1) } : place,
    found: () => (value == null ? place : visit(place, { ...spot, query: value as number, key: null })),
  };
  const step = steps[name.replace(/^(next|previous)_/, "")];
  return step ? fit(step(), b) : place;
}

// The address: `#head=L2H0&query=4&key=1&stage=weights`; positions are those of the text.
export function fragment(place: Place, scene: Scene): string {
  const { spot } = place;
  const parts = new URLSearchParams();
  if (spot.text) parts.set("text", `${spot.text}`);
  if (spot.mask) parts.set("mask", `${spot.mask}`);
  const write = (at: Spot) => scene.headName(at.layer, at.head);
  parts.set("head", write(spot));
  parts.set("query", `${scene.queryAxis.tokenPositions[spot.query] ?? 0}`);
  if (spot.key !== null) parts.set("key", `${scene.keyAxis.tokenPositions[spot.key] ?? 0}`);
  parts.set("stage", place.stage);
  if (place.display !== LENS) parts.set("show", place.display);
  if (place.pinned) parts.set("pin", `${write(place.pinned)},${place.pinned.mask}`);
  return `#${parts}`;
}

export const startOf = ({ record, queryAxis }: Scene) => ({
  query: record.start ?? queryAxis.length - 1,
  key: record.startKey,
});

const headAt = (scene: Scene, name: string | null | undefined): [number, number] | null =>
  scene.record.units.find((one) => one.name === name)?.at ?? null;

export function placeOf(
  address: string,
  place: Place,
  scenes: (text: number, mask: number) => Scene | undefined,
): Place {
  const parts = new URLSearchParams(address.replace(/^#/, ""));
  const whole = (name: string) => Number(parts.get(name)) | 0; // 0 for what is no number
  let spot = { ...place.spot };
  if (parts.size) spot = { ...spot, text: whole("text"), mask: whole("mask") };
  const scene = scenes(spot.text, spot.mask);
  if (!scene) return place;
  // A row of another text or side is none of this one.
  if (scene !== scenes(place.spot.text, place.spot.mask)) spot = { ...spot, ...startOf(scene) };
  const head = headAt(scene, parts.get("head"));
  if (head) [spot.layer, spot.head] = head;
  spot.query = scene.queryAxis.find(parts.get("query")) ?? spot.query;
  const key = parts.get("key");
  if (parts.has("query") || key !== null) spot.key = scene.keyAxis.find(key) ?? null;
  const [pinName, pinMask] = parts.get("pin")?.split(",") ?? [];
  const pin = headAt(scene, pinName);
  return {
    ...place,
    spot,
    touched: place.touched || (parts.size > 0 && !parts.has("show")),
    stage: parts.get("stage") ?? place.stage,
    display: parts.get("show") ?? (parts.size ? LENS : place.display),
    pinned: pin && { ...spot, layer: pin[0], head: pin[1], mask: Number(pinMask) || 0 },
  };
}
