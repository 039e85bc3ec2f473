// The arithmetic of a cell on one line: as attnscope/views/walk/cell.py writes it.
import { fixed, MINUS, NOT_KNOWN, sizedText } from "./format";
import type { Head } from "./model";

export function weightText(weight: number): string {
  if (weight === 0) return "0";
  const size = Math.abs(weight);
  if (size >= 0.01) return fixed(weight, 2);
  const text =
    size >= 1e-4
      ? String(Number(size.toPrecision(2)))
      : size
          .toExponential(1)
          .replace(".0e", "e")
          .replace(/e-(\d)$/, "e-0$1");
  return weight < 0 ? MINUS + text : text;
}

export function arithmetic(head: Head, query: number, key: number): string {
  const { unit } = head;
  const mean = unit.layer === "mean" || unit.head === "mean";
  const parts: string[] = [];
  const scores = head.cell("scores", query, key);
  const masked = head.cell("masked", query, key);
  const logit = head.cell("scaled", query, key) ?? masked;
  const weight = head.weight(query, key);
  if (scores !== undefined) {
    parts.push(`${mean ? "mean " : ""}q·k ${sizedText(scores)}`);
    if (unit.scaling && logit !== undefined && logit !== -Infinity) parts.push(unit.scaling, `= ${sizedText(logit)}`);
  } else if (logit !== undefined && logit !== -Infinity) parts.push(`scaled ${sizedText(logit)}`);
  if (unit.masked.includes(query)) return [...parts, "→ masked: no key is allowed"].join(" ");
  if (masked === -Infinity && !weight) return [...parts, "→ not allowed by the mask: weight 0"].join(" ");
  if (weight === undefined) {
    const least = head.least(query);
    if (least === undefined) return parts.join(" ") || NOT_KNOWN;
    return [...parts, `weight at most ${weightText(least)} (not among the listed sources)`].join(" ");
  }
  if (Number.isNaN(weight)) return [...parts, "→ no weight"].join(" ");
  if (logit !== undefined && masked !== undefined && !mean) {
    const sink = head.statistics(query).some(([name]) => name === "sink") ? " with the sink" : "";
    parts.push(`→ e^${sizedText(logit)} / Σ${sink} = ${weightText(weight)}`);
  } else parts.push(`${parts.length ? "→ " : ""}${head.scene.record.measure} ${weightText(weight)}`);
  return parts.join(" ");
}
