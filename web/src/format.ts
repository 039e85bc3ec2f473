// Numbers and colours, as the terminal and figures write them (attnscope/views/numbers.py, figure/colours.py).

export const MINUS = "\u2212";
export type Digits = { decimals: number; scientific?: boolean };

export function fixed(value: number, decimals: number): string {
  if (Number.isNaN(value)) return "nan";
  if (!Number.isFinite(value)) return value > 0 ? "inf" : `${MINUS}inf`;
  const size = Math.abs(value);
  let text = size.toFixed(decimals);
  const steps = size * 10 ** decimals;
  if (steps < 2 ** 52 && steps % 1 === 0.5 && Math.floor(steps) % 2 === 0) {
    text = (Math.floor(steps) / 10 ** decimals).toFixed(decimals); // a tie goes to the even digit, as in Python
  }
  return value < 0 && Number(text) !== 0 ? MINUS + text : text;
}

export function digitsText(value: number, digits: Digits): string {
  if (!digits.scientific || !Number.isFinite(value)) return fixed(value, digits.decimals);
  const [mantissa, exponent] = Math.abs(value).toExponential(digits.decimals).split("e") as [string, string];
  const signed = `${exponent[0]}${exponent.slice(1).padStart(2, "0")}`;
  return `${value < 0 ? MINUS : ""}${mantissa}e${signed}`;
}

// A number with as many decimals as its size asks for.
export function digitsFor(largest: number, precision: number): Digits {
  if (!(largest > 0) || !Number.isFinite(largest)) return { decimals: precision };
  const magnitude = Math.floor(Math.log10(largest));
  if (magnitude >= precision + 5 || magnitude < -precision - 3)
    return { decimals: Math.max(1, precision - 1), scientific: true };
  if (magnitude < 0) return { decimals: Math.max(precision, 1 - magnitude) };
  return { decimals: Math.max(0, Math.min(precision, precision + 3 - magnitude)) };
}

export const sizedText = (value: number, precision = 2): string =>
  digitsText(value, digitsFor(Math.abs(value), precision));

// Every digit that tells a float32 from its neighbours.
export function exactText(value: number): string {
  if (!Number.isFinite(value)) return fixed(value, 0);
  for (let digits = 1; ; digits++) {
    const short = Number(value.toPrecision(digits));
    if (Math.fround(short) === value || digits === 9) return `${short}`.replace("-", MINUS);
  }
}

export type Rgb = [number, number, number];
const hex = (text: string): Rgb[] =>
  text.split(" ").map((c) => [0, 2, 4].map((i) => Number.parseInt(c.slice(i, i + 2), 16)) as Rgb);
export type Theme = "light" | "dark";
interface Surface {
  background: string;
  more: string;
  less: string;
  hatch: string;
  unknown: string;
  ink: string;
  dim: string;
}
export type Shape = "sqrt" | "linear" | "log";
export interface Palette {
  surfaces: Record<Theme, Surface>;
  shapes: Shape[];
  ticks: number[];
  marks: string; // what a number below a ramp means
  original: string; // what a picture without a map is
  patch: string; // what a number of a map is
  mixing: { colour: number; brightness: number; faintest: number; steep: number; fullest: number }; // of a map on a picture
  ratio: number; // of the largest to the smallest number of a logarithmic scale
}

// Colours are data: attnscope/views/palette.py and scales.py, which every view reads.
export let palette: Palette;
const ramps = {} as Record<Theme, [Rgb[], Rgb[]]>; // of numbers from zero on, and of signed ones
const surfaces = {} as Record<Theme, Record<string, Rgb>>;

export function setPalette(given: Palette) {
  palette = given;
  for (const theme of ["light", "dark"] as const) {
    const { more, less } = given.surfaces[theme];
    ramps[theme] = [blend(hex(more)), blend([...hex(less).reverse(), ...hex(more).slice(1)])];
    surfaces[theme] = {};
    for (const [name, colours] of Object.entries(given.surfaces[theme])) surfaces[theme][name] = hex(colours)[0]!;
  }
}

// Every step of a ramp through some colours.
function blend(stops: Rgb[]): Rgb[] {
  return Array.from({ length: 257 }, (_, n) => {
    const at = (n / 256) * (stops.length - 1);
    const left = Math.min(Math.floor(at), stops.length - 2);
    return stops[left]!.map((c, i) => Math.round(c + (stops[left + 1]![i]! - c) * (at - left))) as Rgb;
  });
}

// A colour that is no ramp, for CSS.
export const tint = (theme: Theme, name: keyof Surface): string => `#${palette.surfaces[theme][name]}`;
export const surface = (theme: Theme, name: keyof Surface): Rgb => surfaces[theme][name]!;
export const ramp = (theme: Theme, signed: boolean): Rgb[] => ramps[theme][+signed]!;

export const css = (c: Rgb): string => `rgb(${c.join(",")})`;

export function inkOn(c: Rgb): string {
  const [r, g, b] = c.map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r! + 0.7152 * g! + 0.0722 * b! > 0.179 ? "#000" : "#fff";
}

export const parseHex = (colour: string): Rgb => hex(colour.slice(1))[0]!;

export const mixed = (colour: Rgb, base: Rgb, share: number): Rgb =>
  colour.map((c, i) => Math.round(base[i]! + (c - base[i]!) * share)) as Rgb;

export interface Scale {
  low: number;
  high: number;
  signed: boolean;
  shape?: Shape;
  unknown?: boolean; // it is another one in each picture
  factor?: number; // of numbers that are written beside it: 100 for percent
}

// From the share of the largest number to a place on a ramp, as scales.SHAPES.
function shaped(share: number, shape: Shape | undefined): number {
  if (shape === "sqrt") return Math.sqrt(share);
  if (shape === "log") return share > 0 ? Math.max(0, 1 + Math.log10(share) / Math.log10(palette.ratio)) : 0;
  return share;
}

export function place(scale: Scale, value: number): number | null {
  if (!Number.isFinite(value)) return null;
  const { low, high, signed, shape } = scale;
  if (high <= low) return signed ? 0.5 : 0;
  if (signed) return (1 + Math.sign(value) * shaped(Math.min(1, Math.abs(value) / high), shape)) / 2;
  return shaped(Math.min(1, Math.max(0, (value - low) / (high - low))), shape);
}

export function colourOf(theme: Theme, scale: Scale, value: number): Rgb | null {
  const at = place(scale, value);
  return at === null ? null : ramp(theme, scale.signed)[Math.round(at * 256)]!;
}

export function scaleOf(numbers: ArrayLike<number>, signed: boolean): Scale {
  let largest = 0;
  for (let i = 0; i < numbers.length; i++) {
    const size = signed ? Math.abs(numbers[i]!) : numbers[i]!;
    if (size > largest && Number.isFinite(size)) largest = size;
  }
  return { low: signed ? -largest : 0, high: largest, signed };
}

// A probability, as studies/screens/predictions.py writes it.
export const probabilityText = (share: number): string =>
  share > 0 && share < 0.0005 ? "<0.1 %" : `${fixed(100 * share, 1)} %`;

export const NOT_ALLOWED = "not allowed";
export const NOT_KNOWN = "not known";
const NO_WEIGHT = "·"; // exactly zero, or not allowed by the mask

// What a cell of a stage says: as views/numbers.py writes it.
export function cellText(panel: { name: string; digits: Digits; maskedWord?: string }, value: number, masked: boolean) {
  if (masked && (panel.name === "weights" || panel.name === "output")) return panel.maskedWord ?? "masked";
  if (value === -Infinity || (panel.name === "weights" && value === 0)) return NO_WEIGHT;
  return digitsText(value, panel.digits);
}
