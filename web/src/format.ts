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
const RAMPS = {
  light: {
    weights: hex("ffffff deebf7 c6dbef 9ecae1 6baed6 4292c6 2171b5 08519c 08306b"),
    signed: hex("053061 2166ac 4393c3 92c5de d1e5f0 ffffff fddbc7 f4a582 d6604d b2182b 67001f"),
  },
  dark: {
    weights: hex("14181f 17263d 1a3a63 1c538f 2472b8 3f95d4 6fb8e8 a9d8f5 e6f4fd"),
    signed: hex("a6d5ff 4f9bea 2c62ac 24406b 1b2436 14181f 33221b 6b3c1e ac5a1d e88a35 ffd09a"),
  },
};
export type Theme = "light" | "dark";
const steps = new Map<string, Rgb[]>();

export function ramp(theme: Theme, signed: boolean): Rgb[] {
  const name = theme + signed;
  let found = steps.get(name);
  if (!found) {
    const stops = RAMPS[theme][signed ? "signed" : "weights"];
    found = Array.from({ length: 257 }, (_, n) => {
      const at = (n / 256) * (stops.length - 1);
      const left = Math.min(Math.floor(at), stops.length - 2);
      return stops[left]!.map((c, i) => Math.round(c + (stops[left + 1]![i]! - c) * (at - left))) as Rgb;
    });
    steps.set(name, found);
  }
  return found;
}

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
}

export function place(scale: Scale, value: number): number | null {
  if (!Number.isFinite(value)) return null;
  if (scale.high <= scale.low) return scale.signed ? 0.5 : 0;
  return Math.min(1, Math.max(0, (value - scale.low) / (scale.high - scale.low)));
}

export function scaleOf(numbers: ArrayLike<number>, signed: boolean): Scale {
  let largest = 0;
  for (let i = 0; i < numbers.length; i++) {
    const size = signed ? Math.abs(numbers[i]!) : numbers[i]!;
    if (size > largest && Number.isFinite(size)) largest = size;
  }
  return { low: signed ? -largest : 0, high: largest, signed };
}

// What a cell of a stage says: as views/numbers.py writes it.
export function cellText(panel: { name: string; digits: Digits; maskedWord?: string }, value: number, masked: boolean) {
  if (masked && (panel.name === "weights" || panel.name === "output")) return panel.maskedWord ?? "masked";
  if (panel.name === "masked" && value === -Infinity) return "·";
  if (panel.name === "weights" && value === 0) return "0";
  return digitsText(value, panel.digits);
}
