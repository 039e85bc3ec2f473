// Scenes and heads of a walk: what attnscope/views/page/walk.py writes.
import { type Data, type Matrix, matrixOf, type Ref, type Source } from "./data";
import type { Tree } from "./elements";
import { type Label, nameOf } from "./heat";

interface AxisData {
  kind: string;
  names: string[];
  positions: number | number[]; // of spans, their names as one types them
  numbers: string[] | null;
  special: number[];
  sink: number[];
  total: number;
}

const NO_LABEL: Label = { number: "", name: "" };
export const RIGHT_TO_LEFT = /\p{sc=Hebr}|\p{sc=Arab}/u; // words that would draw numbers beside them to their other side

export class Axis {
  readonly tokenLabels: Label[];
  readonly tokenPositions: number[];
  private places: Map<string, number>;

  constructor(readonly data: AxisData) {
    const { positions } = data;
    this.tokenPositions = typeof positions === "number" ? Array.from({ length: positions }, (_, n) => n) : positions;
    this.tokenLabels = this.tokenPositions.map((p, n) => ({
      number: data.numbers?.[n] ?? `${p}`,
      name: data.names[n] ?? "",
    }));
    this.places = new Map(this.tokenPositions.map((p, n) => [`${p}`, n]));
  }

  get length() {
    return this.tokenLabels.length;
  }

  // The first token; −1 for none. A span may be named 0, which is no position.
  get begin() {
    return this.tokenPositions.indexOf(0);
  }

  find(position: number | string | null): number | undefined {
    return this.places.get(`${position ?? ""}`); // a span may be named null
  }

  word(n: number): string | undefined {
    return this.tokenLabels[n]?.name;
  }

  // With its number.
  name(n: number): string {
    const { number, name } = this.tokenLabels[n] ?? NO_LABEL;
    return nameOf({ number, name: RIGHT_TO_LEFT.test(name) ? `\u2068${name}\u2069` : name });
  }
}

interface MapData {
  queries: number[];
  keys: number[];
  weights: Ref; // missing where nothing is read
}

interface Unit {
  at: [number, number];
  layer: number | string;
  head: number | string;
  name: string;
  scaling: string; // what is done to scores before the mask, such as `÷ √48`; empty if that is not known
  stages: Record<string, Source>;
  start: number;
  masked: number[];
  chosen: string;
  exact: boolean;
  map: MapData | null;
}

interface Group {
  units: [number, number][];
  rows: number[];
  exact: boolean;
  by?: string;
  leftOut?: string[];
  back?: Ref; // how far the sources of each row are before its query, strongest first
  // null for weights that are in the matrix; others may be products of the weight with a norm of every key
  measures?: Record<string, Ref | { norms: Ref } | null>;
  statistics: Record<string, Ref | null>;
  map?: MapData;
}

type Pairs = [number, number][];

export interface SceneData {
  text: number;
  mask: number;
  size: string; // how many layers and heads there are
  layers: (number | string)[];
  heads: (number | string)[];
  queries: AxisData;
  keys: AxisData | "queries";
  sources: AxisData | "queries" | "keys";
  passages: [string, number, number][];
  stages: string[];
  measure: string; // what a cell of the last stage is called: weight, or share
  hatched: boolean; // cells of 0 are hatched: nothing is read there
  begin: string; // key of the words that say what to do first
  aligned: boolean;
  predictions: { position: number; title: Tree[]; tokens: string[]; probabilities: number[] }[];
  numbers: {
    name: string;
    meaning: string;
    values: Ref;
    ending: string; // what follows it, such as its unit
    words: null | [number, string][]; // of cutting each head: a word for sizes from each on
  }[];
  displays: Record<string, string>; // what the panel of heads can show, and what that is called
  // What cutting each head changes: KL of the prediction in bits, or else the share of the final state.
  effects: null | {
    positions: number[]; // their mean is the number "effect of head"
    preposition: string; // what is before the name of a position: what the model predicts is after or at it
    tokens: string[]; // the most probable one at each of them, its probability, and the same without each head
    before: Ref | null;
    after: Ref | null;
  };
  noEffects: string; // why they were not measured
  roles: null | {
    names: string[];
    letters: string[];
    colours: string[];
    meanings: string[];
    main: Ref;
    strength: Ref;
    measured: string;
    texts: number[]; // the text that heads of each role are shown on; none for the current one
    rows: Ref | null; // the query of that text whose row shows the role of a head best, -1 for none
  };
  command: string;
  elsewhere: boolean; // the command names a file of another folder
  comparison: string; // the command that shows both sides, if their masks alone differ
  levels: number[]; // loudness of every key, if keys are frames of a sound
  first: [number, number];
  start: number | null;
  startKey: number | null;
  display: string; // what every head shows first
  answer: string; // where there is most of that
  model: string;
  maskName: string;
  random: boolean;
  // The pictures of the text, each patch with its source (-1 for none); the sources of each kind of token; the largest
  // number of the scale; and all weights, by their roots, of heads that have no exact ones.
  pictures: null | {
    grids: { name: string; pixels: Ref; shape: [number, number]; sources: number[] }[];
    kinds: [string, number[]][];
    high: number;
    rows: null | { units: [number, number][]; start: number; weights: Ref };
  };
  // Indices in the first side of a comparison and in this one, if their tokens differ; -1 for a token that one lacks.
  pairs: null | { queries: Pairs; keys: Pairs; rows: AxisData; columns: AxisData };
  units: Unit[];
  groups: Group[];
}

export interface Listed {
  source: number; // index on the axis of sources
  key: number | undefined; // and on that of keys
  measures: Record<string, number>;
}

export class Scene {
  readonly queryAxis: Axis;
  readonly keyAxis: Axis;
  readonly sourceAxis: Axis;
  readonly sinks: ReadonlySet<number>; // keys that heads rest on: the first token, special ones, and learned sinks
  private known = new Map<string, Head>();
  private units = new Map<string, Unit>();
  private groups = new Map<string, [Group, number]>();

  constructor(
    readonly record: SceneData,
    readonly store: Data,
  ) {
    this.queryAxis = new Axis(record.queries);
    this.keyAxis = record.keys === "queries" ? this.queryAxis : new Axis(record.keys);
    this.sourceAxis =
      record.sources === "queries"
        ? this.queryAxis
        : record.sources === "keys"
          ? this.keyAxis
          : new Axis(record.sources);
    const { special, sink } = this.keyAxis.data;
    this.sinks = new Set([this.keyAxis.begin, ...special, ...sink]);
    for (const unit of record.units) this.units.set(`${unit.at}`, unit);
    for (const group of record.groups)
      for (const [n, at] of group.units.entries()) this.groups.set(`${at}`, [group, n]);
  }

  head(layer: number, head: number): Head | null {
    const name = `${[layer, head]}`;
    const unit = this.units.get(name);
    if (!unit) return null;
    let found = this.known.get(name);
    if (!found) {
      const group = this.groups.get(name);
      found = new Head(this, unit, group?.[0] ?? null, group?.[1] ?? 0);
      this.known.set(name, found);
    }
    return found;
  }

  // The index of a token of this side on another side; -1 if the other side lacks the token.
  on(other: Scene, axis: "queries" | "keys", at: number): number {
    const pair = (scene: Scene, from: 0 | 1, n: number) =>
      scene.record.pairs ? (scene.record.pairs[axis].find((one) => one[from] === n)?.[1 - from] ?? -1) : n;
    return other === this || at < 0 ? at : pair(other, 0, pair(this, 1, at));
  }

  // The number that says what cutting each head changes: of a page, or of a dump.
  get ofCuts() {
    return this.record.numbers.find(({ words }) => words);
  }

  // What that is; null if it is not known.
  get effects(): ArrayLike<number> | null {
    return this.ofCuts ? this.store.numbers(this.ofCuts.values) : null;
  }

  // The numbers of every head at a token, of layers × heads × tokens.
  ofToken(ref: Ref, position: number): number[] {
    const [layers, heads, tokens] = this.store.shape(ref) as [number, number, number];
    const all = this.store.numbers(ref);
    return Array.from({ length: layers * heads }, (_, n) => all[n * tokens + position]!);
  }

  // Whether the mask forbids a cell in all heads whose mask the page holds.
  forbids(query: number, key: number | null): boolean {
    const known = this.record.units.map(({ at }) => this.head(...at)!.cell("masked", query, key ?? -1));
    return known.includes(-Infinity) && known.every((score) => score === undefined || score === -Infinity);
  }

  headName(layer: number, head: number): string {
    return this.units.get(`${[layer, head]}`)?.name ?? `L${this.record.layers[layer]}H${this.record.heads[head]}`;
  }
}

// What a stage is called: a page of shares has no weights.
export const stageName = (scene: Scene, stage: string) => stage.replace("weight", scene.record.measure);

// The stage that is shown of a head: weights, if the page lacks the one that is asked for.
export const shownStage = (head: Head | null, stage: string) =>
  head && !(stage in head.unit.stages) ? "weights" : stage;

export class Head {
  private rowIndex = new Map<number, number>();
  private elsewhere: number | undefined;

  constructor(
    readonly scene: Scene,
    readonly unit: Unit,
    private group: Group | null,
    private at: number,
  ) {
    for (const [n, row] of (group?.rows ?? []).entries()) this.rowIndex.set(row, n);
  }

  get exact() {
    return this.unit.exact;
  }

  stage(name: string): Matrix | null {
    const { stages } = this.unit;
    return name in stages ? this.scene.store.stage(stages, name) : null;
  }

  // The number of a cell; undefined if the page does not hold it.
  cell(stage: string, query: number, key: number): number | undefined {
    const matrix = this.stage(stage);
    const row = query - this.unit.start;
    return matrix && row >= 0 && row < matrix.rows ? matrix.at(row, key) : undefined;
  }

  // The weight of a cell: the exact one, or as its row lists it; undefined if the page has neither.
  weight(query: number, key: number): number | undefined {
    return this.cell("weights", query, key) ?? this.listed(query)?.find((one) => one.key === key)?.measures.weight;
  }

  // A map of all weights, and the cells in which no query reads any key.
  get map() {
    const map = this.unit.map ?? this.group?.map;
    if (!map) return null;
    const [rows, columns] = this.scene.store.shape(map.weights).slice(-2) as [number, number];
    const offset = this.unit.map ? 0 : this.at * rows * columns;
    const matrix = matrixOf(this.scene.store.numbers(map.weights), rows, columns, offset);
    const { at } = matrix;
    matrix.at = (r, c) => at(r, c) || 0;
    return { ...map, matrix, forbidden: (r: number, c: number) => Number.isNaN(at(r, c)) };
  }

  // The strongest sources of a query; null if the page lists none of this row.
  listed(query: number): Listed[] | null {
    const { group, scene } = this;
    const row = this.rowIndex.get(query);
    if (!group?.back || row === undefined) return null;
    const [ranks, , rows] = scene.store.shape(group.back) as [number, number, number];
    const back = scene.store.raw(group.back);
    const found: Listed[] = [];
    for (let rank = 0; rank < ranks; rank++) {
      const at = (rank * group.units.length + this.at) * rows + row;
      const source = query - Number(back[at]);
      if (source < 0) continue;
      const key = scene.keyAxis.find(scene.sourceAxis.tokenPositions[source]!);
      const measures: Record<string, number> = {};
      for (const [name, ref] of Object.entries(group.measures!))
        measures[name] = !ref
          ? this.cell("weights", query, key!)!
          : "norms" in ref
            ? Math.fround(
                measures.weight! * this.scene.store.numbers(ref.norms)[this.at * scene.keyAxis.length + key!]!,
              )
            : this.scene.store.numbers(ref)[at]!;
      found.push({ source, key, measures });
    }
    return found;
  }

  // The row nearest to a query of which sources are listed.
  nearest(query: number): number | undefined {
    return [...(this.group?.rows ?? [])].sort((a, b) => Math.abs(a - query) - Math.abs(b - query))[0];
  }

  get by(): string {
    return this.group?.by ?? "weight";
  }

  get leftOut(): string[] {
    return this.group?.leftOut ?? [];
  }

  statistics(query: number): [string, number][] {
    const row = this.rowIndex.get(query);
    if (!this.group || row === undefined) return [];
    const { keyAxis, queryAxis } = this.scene;
    // A weight that the row lists, too, is the same number there: rounded only once.
    const keys: Record<string, number | undefined> = {
      first: keyAxis.begin,
      self: keyAxis.find(queryAxis.tokenPositions[query]!),
    };
    return Object.entries(this.group.statistics)
      .map(([name, ref]): [string, number] => {
        const stored = ref ? this.scene.store.numbers(ref)[this.at * this.group!.rows.length + row]! : Number.NaN;
        const key = keys[name] ?? -1;
        return [name, (key < 0 || (ref && this.exact) ? undefined : this.weight(query, key)) ?? stored];
      })
      .filter(([, value]) => !Number.isNaN(value));
  }

  // What a source that a row does not list can have at most; undefined if that is not known.
  least(query: number): number | undefined {
    if (this.by !== "weight" || this.leftOut.length) return undefined;
    return this.listed(query)?.at(-1)?.measures.weight;
  }

  // The weights of a row by key; null if the page does not hold them all.
  private exactRow(query: number) {
    const weights = this.stage("weights");
    const row = query - this.unit.start;
    if (!weights || row < 0 || row >= weights.rows) return null;
    const start = weights.offset + row * weights.columns;
    return weights.data.subarray(start, start + weights.columns);
  }

  // All weights of a row by source; null if the page does not hold them.
  wholeRow(query: number): (ArrayLike<number> & Iterable<number>) | null {
    const { keyAxis, sourceAxis, record, store } = this.scene;
    if (keyAxis.length !== sourceAxis.length) return null;
    const exact = this.exactRow(query);
    if (exact) return exact;
    const rounded = record.pictures?.rows;
    const unit =
      rounded?.units.findIndex(([layer, head]) => layer === this.unit.at[0] && head === this.unit.at[1]) ?? -1;
    if (!rounded || unit < 0) return null;
    const [, rows, columns] = store.shape(rounded.weights) as [number, number, number];
    const at = query - rounded.start;
    if (at < 0 || at >= rows) return null;
    const roots = store.raw(rounded.weights) as Uint8Array;
    const start = (unit * rows + at) * columns;
    const row = Float32Array.from(roots.subarray(start, start + columns), (root) => root ** 2);
    const whole = row.reduce((sum, share) => sum + share) / (1 - this.drained(query)); // of rounded numbers
    return row.map((share) => share / whole || 0);
  }

  // The weight of a row on the learned sink of the head; 0 if it has none.
  drained(query: number): number {
    return this.statistics(query).find(([name]) => name === "sink")?.[1] ?? 0;
  }

  // How much of a row is on sources that are not listed; null if nothing of it is.
  unlisted(query: number): number | null {
    const listed = this.listed(query);
    if (!listed) return null;
    const whole = this.wholeRow(query);
    const all = whole ? [...whole].filter((share) => share > 0).length : this.scene.sourceAxis.length;
    const ranks = this.scene.store.shape(this.group!.back!)[0]!;
    if (listed.length >= all || (listed.length < ranks && !this.leftOut.length)) return null; // the rest is rounding
    return Math.max(0, 1 - this.drained(query) - listed.reduce((sum, one) => sum + (one.measures.weight ?? 0), 0));
  }

  // The key with the largest weight.
  best(query: number): number | undefined {
    let [most, best] = [-1, this.stage("weights") ? 0 : undefined]; // of a row without weights, the cursor is at its begin
    this.eachShare(query, (key, share) => {
      if (share > most) [most, best] = [share, key];
    });
    return best;
  }

  // The largest weight that is not on a sink; 0 if none is known.
  largestElsewhere(): number {
    if (this.elsewhere === undefined) {
      let most = 0;
      for (const query of this.scene.queryAxis.tokenLabels.keys())
        this.eachShare(query, (key, share) => {
          if (share > most && !this.scene.sinks.has(key)) most = share;
        });
      this.elsewhere = most;
    }
    return this.elsewhere;
  }

  // The weights of a column by query: all of them, or those that rows list.
  readers(key: number): Map<number, number> {
    const found = new Map<number, number>();
    for (const query of this.scene.queryAxis.tokenLabels.keys()) {
      const share = this.weight(query, key);
      if (share! > 0) found.set(query, share!);
    }
    return found;
  }

  // The query, other than the token itself, that reads a key most.
  reader(key: number): number | undefined {
    const { queryAxis: queries, keyAxis: keys } = this.scene;
    const others = [...this.readers(key)].filter(
      ([query]) => queries.tokenPositions[query] !== keys.tokenPositions[key],
    );
    return others.sort((a, b) => b[1] - a[1])[0]?.[0];
  }

  // Calls `use` for the weights of a row: all of them, or those that are listed.
  eachShare(query: number, use: (key: number, share: number) => void) {
    const exact = this.exactRow(query);
    if (exact)
      exact.forEach((share, key) => {
        if (share > 0) use(key, share);
      });
    else for (const { key, measures } of this.listed(query) ?? []) if (key !== undefined) use(key, measures.weight!);
  }

  // These weights by key.
  shares(query: number): Map<number, number> {
    const found = new Map<number, number>();
    this.eachShare(query, (key, share) => found.set(key, share));
    return found;
  }

  // A picture of all weights: the matrix, its map, or the sources that are listed.
  picture(): Matrix | null {
    return this.map?.matrix ?? this.stage("weights") ?? this.sparse();
  }

  sparse(): Matrix | null {
    const { queryAxis: queries, keyAxis: keys } = this.scene;
    if (!this.group?.back || queries.length * keys.length > 1e7) return null;
    const found = new Float64Array(queries.length * keys.length).fill(Number.NaN); // as lists have them
    for (const query of this.rowIndex.keys())
      for (const [key, share] of this.shares(query)) found[query * keys.length + key] = share;
    return matrixOf(found, queries.length, keys.length);
  }
}
