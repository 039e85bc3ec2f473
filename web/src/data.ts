// Reads the data of a page: see attnscope/views/page/container.py, which writes it.

import type { Tree } from "./elements";
import type { Palette } from "./format";

export type Ref = { "@": number; decimals?: number; missing?: number; falls?: boolean };
type Product = { product: [Ref, Ref]; d: Ref | "none" };
type Staged = { of: string; how: "weights" | "scaled"; scale?: number; allowed?: Ref | null; d: Ref | "none" };
export type Source = Ref | Product | Staged;
export type Numbers = Float32Array | Float64Array;
type Entry = { o: number; t: string; s: number[] };
type Typed = Uint8Array | Uint16Array | Uint32Array | Int16Array | Int32Array | Float32Array;

const TYPES: Record<string, { new (buffer: ArrayBuffer): Typed; BYTES_PER_ELEMENT: number }> = {
  u1: Uint8Array,
  u2: Uint16Array,
  u4: Uint32Array,
  i2: Int16Array,
  i4: Int32Array,
  f4: Float32Array,
};

export interface Matrix {
  rows: number;
  columns: number;
  at: (row: number, column: number) => number;
  data: Numbers;
  offset: number;
}

export const matrixOf = (data: Numbers, rows: number, columns: number, offset = 0): Matrix => ({
  rows,
  columns,
  data,
  offset,
  at: (row, column) => data[offset + row * columns + column]!,
});

export class Data {
  private cache = new Map<number, Typed>();
  private floats = new Map<Ref, Numbers>();
  private matrices = new Map<Source, Matrix>(); // each is computed once, although others are computed from it

  constructor(
    private bytes: Uint8Array,
    private start: number,
    private entries: Entry[],
    private counts: [number, number][], // of numbers by their width, the narrowest first
  ) {}

  shape(ref: Ref): number[] {
    return this.entries[ref["@"]]!.s;
  }

  // An array as it was written; the bytes of all numbers of its width are stored plane by plane.
  raw(ref: Ref): Typed {
    const known = this.cache.get(ref["@"]);
    if (known) return known;
    const { o, t, s } = this.entries[ref["@"]]!;
    const type = TYPES[t]!;
    const count = s.reduce((a, b) => a * b, 1);
    const width = type.BYTES_PER_ELEMENT;
    const out = new Uint8Array(count * width);
    let base = this.start + o;
    let all = 0;
    for (const [other, numbers] of this.counts) {
      if (other < width) base += other * numbers;
      if (other === width) all = numbers;
    }
    for (let plane = 0; plane < width; plane++, base += all) {
      for (let i = 0, at = plane; i < count; i++, at += width) out[at] = this.bytes[base + i]!;
    }
    const typed = new type(out.buffer as ArrayBuffer);
    this.cache.set(ref["@"], typed);
    return typed;
  }

  numbers(ref: Ref): Numbers {
    const raw = this.raw(ref);
    if (ref.decimals === undefined) return raw as Float32Array;
    let found = this.floats.get(ref);
    if (found) return found;
    const factor = 10 ** ref.decimals;
    found = new Float64Array(raw.length);
    this.floats.set(ref, found);
    if (ref.falls) {
      // every rank is stored as what it is less than the one before
      const rank = raw.length / this.shape(ref)[0]!;
      for (let i = rank; i < raw.length; i++) raw[i] = Number(raw[i - rank]) - Number(raw[i]);
    }
    for (let i = 0; i < found.length; i++) {
      const step = raw[i] as number;
      found[i] = step === ref.missing ? Number.NaN : step / factor;
    }
    return found;
  }

  matrix(ref: Ref): Matrix {
    const [rows, columns] = this.shape(ref) as [number, number];
    return matrixOf(this.numbers(ref), rows, columns);
  }

  // A stage of a head: exact float32, however it was written.
  stage(sources: Record<string, Source>, name: string): Matrix {
    const source = sources[name]!;
    const known = this.matrices.get(source) ?? this.computed(sources, source);
    this.matrices.set(source, known);
    return known;
  }

  private computed(sources: Record<string, Source>, source: Source): Matrix {
    if ("@" in source) return this.matrix(source);
    if ("product" in source) {
      const [left, right] = source.product;
      const [rows, rank] = this.shape(left) as [number, number];
      const columns = this.shape(right)[0]!;
      const found = product(this.numbers(left), this.numbers(right), rows, columns, rank);
      return matrixOf(this.corrected(found, source.d), rows, columns);
    }
    const before = this.stage(sources, source.of);
    const { rows, columns } = before;
    let found: Float32Array;
    if (source.how === "weights") found = softmax(before);
    else {
      found = Float32Array.from(before.data as Float32Array);
      if (source.scale !== undefined) for (let i = 0; i < found.length; i++) found[i] = found[i]! * source.scale;
      if (source.allowed) {
        const bits = this.raw(source.allowed) as Uint8Array;
        for (let i = 0; i < found.length; i++) if (!(bits[i >> 3]! & (128 >> (i & 7)))) found[i] = -Infinity;
      }
    }
    return matrixOf(this.corrected(found, source.d), rows, columns);
  }

  private corrected(found: Float32Array, d: Ref | "none"): Float32Array {
    const bits = new Int32Array(found.buffer);
    for (let i = 0; i < found.length; i++) if (Number.isNaN(found[i])) bits[i] = 0;
    if (d === "none") return found;
    const folded = this.raw(d) as Uint32Array;
    for (let i = 0; i < bits.length; i++) bits[i]! += (folded[i]! >>> 1) ^ -(folded[i]! & 1);
    return found;
  }
}

// A product of two narrow matrices, with the operations and in the order of container.product.
function product(left: Numbers, right: Numbers, rows: number, columns: number, rank: number): Float32Array {
  const found = new Float32Array(rows * columns);
  const turned = new Float64Array(rank * columns); // what is read in a row lies in a row
  for (let c = 0; c < columns; c++) for (let k = 0; k < rank; k++) turned[k * columns + c] = right[c * rank + k]!;
  const line = new Float64Array(columns);
  for (let r = 0; r < rows; r++) {
    line.fill(0);
    for (let k = 0; k < rank; k++) {
      const factor = left[r * rank + k]!;
      const start = k * columns;
      for (let c = 0; c < columns; c++) line[c]! += factor * turned[start + c]!;
    }
    found.set(line, r * columns);
  }
  return found;
}

// The softmax of every row, with the operations and in the order of container.softmax, so that the bits are the same.
function softmax(masked: Matrix): Float32Array {
  const { rows, columns, data } = masked;
  const found = new Float32Array(rows * columns);
  const powers = new Float64Array(columns);
  const factorials: number[] = [];
  for (let n = 1, f = 1; n < 14; n++, f *= n) factorials.push(f);
  for (let r = 0; r < rows; r++) {
    let most = -Infinity;
    for (let c = 0; c < columns; c++) most = Math.max(most, data[r * columns + c]!);
    let total = 0;
    for (let c = 0; c < columns; c++) {
      powers[c] = Math.fround(exponential(Math.fround(data[r * columns + c]! - most), factorials));
      total += powers[c]!;
    }
    const share = Math.fround(1 / Math.fround(total));
    for (let c = 0; c < columns; c++) found[r * columns + c] = powers[c]! * share;
  }
  return found;
}

const LN2_HIGH = 0.6931471803691238; // 0x1.62e42fee00000p-1
const LN2_LOW = 1.9082149292705877e-10; // 0x1.a39ef35793c76p-33
const power = new Float64Array(1);
const words = new Uint32Array(power.buffer);

function exponential(x: number, factorials: number[]): number {
  if (Number.isNaN(x)) return x;
  if (x < -700) return 0;
  const k = Math.floor(x * Math.LOG2E + 0.5);
  const r = x - k * LN2_HIGH - k * LN2_LOW;
  let total = 1 / factorials[12]!;
  for (let n = 11; n >= 0; n--) total = total * r + 1 / factorials[n]!;
  words[0] = 0;
  words[1] = (k + 1023) << 20; // 2^k
  return (total * r + 1) * power[0]!;
}

export interface Header {
  version: number;
  heading: Tree;
  footer: string;
  palette: Palette;
  // biome-ignore lint/suspicious/noExplicitAny: nodes are described where they are drawn
  nodes: any[];
}

export function read(block: ArrayBuffer): [Header, Data] {
  const length = new DataView(block).getUint32(0, true);
  const bytes = new Uint8Array(block);
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
  return [header, new Data(bytes, 4 + length, header.arrays, header.counts)];
}
