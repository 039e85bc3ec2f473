// A matrix as a canvas: cells of colour, with numbers where they fit, labels, a cursor, zoom, and keys.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { Dim } from "./elements";
import {
  colourOf,
  css,
  inkOn,
  MINUS,
  mixed,
  palette,
  parseHex,
  place,
  type Rgb,
  ramp,
  type Scale,
  surface,
  type Theme,
  tint,
} from "./format";
import { stacked } from "./panel";
import { clamp } from "./spot";
import { theme as currentTheme } from "./theme";

export interface Label {
  number: string;
  name: string;
}

export const nameOf = (label: Label) => `${label.number} ${label.name}`.trim();

export interface HeatProps {
  rows: Label[];
  columns: Label[];
  value: (row: number, column: number) => number;
  text: (row: number, column: number, fewer?: number) => string; // with fewer decimals, in cells too small for all
  // What a screen reader and the line under the picture say of a cell.
  say: (row: number, column: number) => string;
  scale: Scale;
  label: string;
  colours?: string[][] | null;
  forbidden?: (row: number, column: number) => boolean; // a mask forbids the cell
  cursor?: [number, number];
  onCursor?: (row: number, column: number) => void;
  onRow?: (row: number) => void; // its label is clicked
  onColumn?: (column: number) => void;
  onHover?: (row: number | null, column: number | null) => void; // one of them is null on a label of the other
  pointed?: [number, number] | null; // the cell that any panel points at; undefined if only this picture knows
  height?: number;
  digits?: boolean; // numbers although cells are too small for them, or none although they are large enough
  id?: string;
  legend?: string;
  // Draws a cell instead of its colour.
  paint?: (
    g: CanvasRenderingContext2D,
    row: number,
    column: number,
    x: number,
    y: number,
    width: number,
    height: number,
  ) => void;
  square?: boolean; // cells are squares, however long the grid is
  onEnter?: () => void;
  levels?: number[]; // loudness of every column, drawn above
  path?: [number, number][]; // first and end of the columns of a path, in every row
}

type Colouring = Pick<HeatProps, "value" | "scale" | "colours" | "forbidden">;

// Steps of keys by rows and columns.
export const STEPS: Record<string, [number, number]> = {
  ArrowLeft: [0, -1],
  ArrowRight: [0, 1],
  ArrowUp: [-1, 0],
  ArrowDown: [1, 0],
};

const FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace";
const LONGEST = 156;
const PHONE_NAME = 80; // above a column of a narrow screen, whose first rows are in sight
const LEAST_LABEL = 9; // a cell with a label, which is as large as the cell up to LARGEST_LABEL
const LARGEST_LABEL = 12;
const LARGEST_CELL = 96;
const SMALL_NUMBER = 11; // letters of numbers that leave out the zero before their point, and percent signs
const ROOMY_CELL = 44; // from which labels are larger
const ROOMY_LABEL = 15;
const LEVEL = 22; // pixels of labels above their columns that do not stand upright
const NUMBERED = 16; // and of labels that are numbers
const TALLEST = 20; // height of cells that are much narrower
const GAP = 6;
const LEAST_TARGET = 24; // of a finger
const STRIP = 36; // pixels of the loudness above a map over seconds

// It is drawn once its width is known.
export function Heat(props: HeatProps) {
  const box = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const element = box.current!;
    const measure = () => setWidth(element.clientWidth);
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  return (
    <div class="heat" ref={box}>
      {width > 0 && <Drawn {...props} space={Math.max(60, width - GAP)} />}
    </div>
  );
}

type DrawnProps = HeatProps & { space: number }; // pixels of its width

function Drawn(props: DrawnProps) {
  const theme = currentTheme();
  const canvas = useRef<HTMLCanvasElement>(null);
  const [zoom, setZoom] = useState(0); // size of a cell; 0 for what fits
  const [corner, setCorner] = useState<[number, number]>([0, 0]);
  const [own, setOwn] = useState<[number, number]>([0, 0]);
  const [ownHover, setHover] = useState<[number, number] | null>(null);
  const hover = props.pointed === undefined ? ownHover : props.pointed;
  const drag = useRef<{ x: number; y: number; corner: [number, number]; moved: boolean } | null>(null);
  const cursor = props.cursor ?? own;
  const { rows, columns } = props;

  const layout = plan(props, zoom);
  const { cell, line, left, top, shownRows, shownColumns } = layout;
  const r0 = clamp(corner[0], rows.length - shownRows + 1);
  const c0 = clamp(corner[1], columns.length - shownColumns + 1);

  useEffect(() => {
    // the cursor stays in sight
    const keep = (at: number, start: number, shown: number) =>
      at < start ? at : at >= start + shown ? at - shown + 1 : start;
    const next: [number, number] = [keep(cursor[0], r0, shownRows), keep(cursor[1], c0, shownColumns)];
    if (next[0] !== r0 || next[1] !== c0) setCorner(next);
  }, [cursor[0], cursor[1], shownRows, shownColumns]);

  const drawn = useMemo(() => {
    let picture: HTMLCanvasElement | null = null;
    return () => {
      picture ??= pixels(props, theme, layout, r0, c0);
      return picture;
    };
  }, [props.value, props.colours, props.scale.shape, props.scale.high, theme, r0, c0, shownRows, shownColumns]);
  useLayoutEffect(() => {
    draw(canvas.current!, props, theme, layout, r0, c0, cursor, hover, drawn);
  });

  // The row and the column of a pixel; one of them is null on a label of the other.
  const at = (event: MouseEvent): [number | null, number | null] => {
    const bounds = canvas.current!.getBoundingClientRect();
    const within = (pixel: number, size: number, start: number, count: number) => {
      const n = Math.floor(pixel / size);
      return n >= 0 && n < count ? start + n : null;
    };
    return [
      within(event.clientY - bounds.top - top, line, r0, shownRows),
      within(event.clientX - bounds.left - left, cell, c0, shownColumns),
    ];
  };
  const move = (row: number, column: number) => {
    const next: [number, number] = [clamp(row, rows.length), clamp(column, columns.length)];
    setOwn(next);
    props.onCursor?.(...next);
  };
  const look = (row: number | null, column: number | null) => {
    setHover(row === null || column === null ? null : [row, column]);
    props.onHover?.(row, column);
  };
  const zoomTo = (factor: number) => {
    const next = Math.max(layout.fit, Math.min(160, (zoom || layout.fit) * factor));
    setZoom(next <= layout.fit * 1.01 ? 0 : next);
    const half = Math.floor(layout.space / next / 2);
    setCorner([cursor[0] - half, cursor[1] - half]);
  };
  const onKey = (event: KeyboardEvent) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.max(1, shownRows - 1);
    const step = STEPS[event.key] ?? { PageUp: [-page, 0], PageDown: [page, 0] }[event.key];
    if (step) move(cursor[0] + step[0]!, cursor[1] + step[1]!);
    else if (event.key === "+" || event.key === "=") zoomTo(1.5);
    else if (event.key === "-") zoomTo(1 / 1.5);
    else if (event.key === "0") setZoom(0);
    else if (event.key === "Enter" && props.onEnter) props.onEnter();
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const partial = shownRows < rows.length || shownColumns < columns.length;
  const said = hover ?? cursor;
  const known = rows[said[0]] && columns[said[1]];
  return (
    <>
      {/* biome-ignore lint/a11y/noInteractiveElementToNoninteractiveRole: keys move its cursor */}
      <canvas
        id={props.id}
        data-cells={`${left} ${top} ${cell} ${line}`} // where the first cell begins, and the width and height of all
        ref={canvas}
        tabIndex={0}
        role="application"
        aria-roledescription="heat map"
        aria-label={`${props.label}: ${rows.length} rows by ${columns.length} columns; arrow keys move, + and − zoom`}
        style={{ height: `${layout.height}px`, width: `${layout.width}px` }}
        onKeyDown={onKey}
        onWheel={(event) => {
          if (!event.ctrlKey && !event.metaKey) return;
          event.preventDefault();
          zoomTo(event.deltaY < 0 ? 1.25 : 0.8);
        }}
        onPointerDown={(event) => {
          drag.current = { x: event.clientX, y: event.clientY, corner: [r0, c0], moved: false };
        }}
        onPointerMove={(event) => {
          const from = drag.current;
          if (from && event.buttons && partial) {
            const by = [Math.round((event.clientY - from.y) / line), Math.round((event.clientX - from.x) / cell)];
            from.moved ||= by[0] !== 0 || by[1] !== 0;
            if (from.moved) setCorner([Math.max(0, from.corner[0] - by[0]!), Math.max(0, from.corner[1] - by[1]!)]);
          } else {
            look(...at(event));
          }
        }}
        onPointerUp={(event) => {
          const [row, column] = at(event);
          if (drag.current?.moved) {
            // the picture was dragged
          } else if (row === null) column !== null && props.onColumn?.(column);
          else if (column === null) props.onRow?.(row);
          else move(row, column);
          drag.current = null;
        }}
        onPointerLeave={() => look(null, null)}
      />
      <p class="cell" aria-live="polite">
        {known && props.say(...said)}
      </p>
      <div class="legend">
        {props.colours ? <span /> : <Ramp scale={props.scale} legend={props.legend} />}
        {(partial || rows.length > 40 || columns.length > 40 || (stacked() && cell < LEAST_TARGET)) && (
          <span class="zoom">
            {partial && (
              <Dim>
                rows {r0}–{Math.min(rows.length, r0 + shownRows) - 1}, columns {c0}–
                {Math.min(columns.length, c0 + shownColumns) - 1}
              </Dim>
            )}
            <button onClick={() => zoomTo(1 / 1.5)} aria-label="Zoom out" disabled={!zoom}>
              −
            </button>
            <button onClick={() => zoomTo(1.5)} aria-label="Zoom in">
              +
            </button>
          </span>
        )}
      </div>
    </>
  );
}

// Share of a ramp between two numbers under it, and that of one of their digits; a point is half as wide.
const APART = 0.027;
const DIGIT = 0.04;

// The colours of a scale with the numbers that they stand for.
export function Ramp({ scale, legend }: { scale: Scale; legend?: string }) {
  const stops = ramp(currentTheme(), scale.signed)
    .filter((_, n) => n % 16 === 0)
    .map(css)
    .join(",");
  const all = scale.shape ? palette.ticks.filter((tick) => tick < scale.high) : [];
  const ends = [...all.filter((tick) => tick > scale.low), scale.high];
  const candidates = scale.signed ? [...ends.map((tick) => -tick), 0, ...ends] : [scale.low, ...ends];
  const least = (scale.high - scale.low) / 1000; // what a reader of the ramp can't tell from zero
  const write = (value: number) =>
    String(Math.abs(value) < least ? 0 : Number((value * (scale.factor ?? 1)).toPrecision(3)))
      .replace(/^(-?)0\./, "$1.")
      .replace("-", MINUS);
  const ticks: { at: number; said: string; half: number }[] = [];
  for (const value of scale.unknown ? [] : candidates.sort((a, b) => Math.abs(b) - Math.abs(a) || b - a)) {
    const at = place(scale, value)!;
    const said = write(value);
    const half = ((said.length - +said.includes(".") / 2) * DIGIT + APART) / 2;
    if (ticks.every((tick) => Math.abs(tick.at - at) > tick.half + half)) ticks.push({ at, said, half });
  }
  return (
    <span class="ramp">
      <span class="stops" style={{ background: `linear-gradient(to right,${stops})` }}>
        {ticks.map(({ at, said }) => (
          <span key={said} style={{ left: `${at * 100}%` }}>
            {said}
          </span>
        ))}
      </span>
      {legend && <Dim>{legend}</Dim>}
      <Dim>{palette.marks}</Dim>
    </span>
  );
}

interface Layout {
  cell: number; // width of a cell
  line: number; // and its height
  fit: number; // size of the smaller side of a cell that is not zoomed
  left: number;
  top: number;
  width: number;
  height: number;
  space: number;
  shownRows: number;
  shownColumns: number;
  named: [boolean, boolean]; // labels of rows and of columns have names, else only some of them a number
  size: number; // of the letters of labels
  upright: boolean; // names of columns stand upright
  bare: boolean; // cells without numbers
}

const measured = new Map<string, number>();
let pen: CanvasRenderingContext2D | null = null;

function textWidth(text: string, size: number): number {
  if (/^[ -~]{2,}$/.test(text)) return text.length * textWidth("0", size); // letters of one width
  const key = size + text;
  let found = measured.get(key);
  if (found === undefined) {
    pen ??= document.createElement("canvas").getContext("2d")!;
    pen.font = `${size}px ${FONT}`;
    found = pen.measureText(text).width;
    measured.set(key, found);
  }
  return found;
}

function plan(props: DrawnProps, zoom: number): Layout {
  const { rows, columns, space } = props;
  const widest = (labels: Label[], size: number, names: boolean) => {
    let most = 0;
    const step = Math.max(1, Math.floor(labels.length / 400));
    for (let n = step - 1; n < labels.length; n += step) {
      most = Math.max(most, textWidth(names ? nameOf(labels[n]!) : labels[n]!.number, size));
    }
    return Math.min(LONGEST, Math.ceil(most)) + GAP;
  };
  const strip = props.levels ? STRIP : 0;
  const room = Math.max(40, (props.height ?? 640) - strip);
  const named: [boolean, boolean] = [true, true];
  // Cells are squares; of a grid that is much longer than wide, or the other way round, they take the room beside it.
  const fitted = (size: number) => {
    const left = widest(rows, size, named[0]);
    const names = named[1] ? Math.min(stacked() ? PHONE_NAME : LONGEST, widest(columns, size, true)) : NUMBERED;
    const across = Math.min(LARGEST_CELL, (space - left) / columns.length);
    const down = Math.min(LARGEST_CELL, Math.max(0.2, (room - Math.max(names, named[1] ? LEVEL : 0)) / rows.length));
    const fit = Math.min(across, down);
    const longer = props.square ? 1 : rows.length / columns.length;
    return {
      size,
      left,
      names,
      fit,
      cell: Math.min(across, fit * Math.max(1, longer)),
      line: Math.min(down, Math.max(fit, Math.min(TALLEST, fit / longer))),
    };
  };
  let found = fitted(LARGEST_LABEL);
  const own = zoom || props.digits; // the size of cells is asked for
  const lie = ({ cell, names }: typeof found) => cell - 4 >= names - GAP; // names of columns need not stand upright
  const large = fitted(ROOMY_LABEL);
  if (large.fit >= ROOMY_CELL && lie(large) === lie(found)) found = large;
  // smaller letters leave more room for cells
  if (!own && found.fit < LARGEST_LABEL) found = fitted(Math.max(LEAST_LABEL, Math.floor(found.fit)));
  if (!own && found.fit < LEAST_LABEL) {
    const longer = Math.max(found.cell, found.line);
    named[0] = found.line >= LEAST_LABEL;
    named[1] = found.cell >= LEAST_LABEL;
    found = fitted(longer < LEAST_LABEL ? LARGEST_LABEL - 1 : Math.min(LARGEST_LABEL - 1, Math.floor(longer)));
  }
  const { size, left, names } = found;
  const roomy = found.fit >= 26;
  const fit = props.digits && !roomy ? 40 : found.fit;
  const least = zoom || fit;
  const cell = Math.max(least, found.cell);
  const line = Math.max(least, found.line);
  named[1] &&= cell >= LEAST_LABEL;
  named[0] &&= line >= LEAST_LABEL;
  const upright = !lie({ ...found, cell });
  const above = named[1] ? (upright ? names : LEVEL) : NUMBERED;
  const shownColumns = Math.max(1, Math.min(columns.length, Math.floor((space - left) / cell + 0.001)));
  const shownRows = Math.max(1, Math.min(rows.length, Math.floor((room - above) / line + 0.001)));
  return {
    cell,
    line,
    fit,
    left,
    top: strip + above,
    width: left + shownColumns * cell + 1,
    height: strip + above + shownRows * line + 1,
    space: Math.min(space - left, room - above),
    shownRows,
    shownColumns,
    named,
    size,
    upright,
    bare: !!props.digits && roomy,
  };
}

// Names such as `sentence 3` keep the number that tells them apart.
function shorten(text: string, room: number, size: number): string {
  if (textWidth(text, size) <= room) return text;
  const end = /\d{0,2}$/.exec(text)![0];
  const letters = [...text.slice(0, text.length - end.length)];
  letters.splice(Math.max(1, (letters.length * room) / textWidth(text, size)));
  const cut = () => `${letters.join("")}…${end}`;
  while (letters.length > 1 && textWidth(cut(), size) > room) letters.pop();
  return cut();
}

export function cellColour(props: Colouring, theme: Theme, row: number, column: number): Rgb | null {
  const value = props.value(row, column);
  const role = props.colours?.[row]?.[column];
  if (role) {
    const strength = Number.isNaN(value) ? 0 : Math.min(1, Math.max(0.25, value));
    return mixed(parseHex(role), surface(theme, "background"), strength);
  }
  return props.colours || props.forbidden?.(row, column)
    ? surface(theme, "background")
    : colourOf(theme, props.scale, value);
}

// A pixel for every cell that is shown.
export function pixels(
  props: Colouring,
  theme: Theme,
  { shownRows, shownColumns }: Pick<Layout, "shownRows" | "shownColumns">,
  r0 = 0,
  c0 = 0,
): HTMLCanvasElement {
  const picture = new ImageData(shownColumns, shownRows);
  const { data } = picture;
  for (let r = 0, at = 0; r < shownRows; r++)
    for (let c = 0; c < shownColumns; c++) {
      // one by one: set() takes several times as long for a cell
      const colour = cellColour(props, theme, r0 + r, c0 + c) ?? surface(theme, "unknown");
      data[at++] = colour[0];
      data[at++] = colour[1];
      data[at++] = colour[2];
      data[at++] = 255;
    }
  return canvasOf(picture);
}

export function canvasOf(picture: ImageData): HTMLCanvasElement {
  const canvas = document.createElement("canvas");
  canvas.width = picture.width;
  canvas.height = picture.height;
  canvas.getContext("2d")!.putImageData(picture, 0, 0);
  return canvas;
}

// Draws lines in ink on wider ones of the page, which are seen on every colour.
export function inked(g: CanvasRenderingContext2D, theme: Theme, wide: number, stroke: () => void) {
  g.strokeStyle = tint(theme, "background");
  g.lineWidth = wide + 2;
  stroke();
  g.strokeStyle = tint(theme, "ink");
  g.lineWidth = wide;
  stroke();
}

// The pen of a canvas of this size, in pixels of the page.
export function penOf(canvas: HTMLCanvasElement, width: number, height: number): CanvasRenderingContext2D {
  const dots = devicePixelRatio || 1;
  canvas.width = Math.round(width * dots);
  canvas.height = Math.round(height * dots);
  const g = canvas.getContext("2d")!;
  g.scale(dots, dots);
  return g;
}

function draw(
  canvas: HTMLCanvasElement,
  props: HeatProps,
  theme: Theme,
  layout: Layout,
  r0: number,
  c0: number,
  cursor: [number, number],
  hover: [number, number] | null,
  colours: () => HTMLCanvasElement,
) {
  const { cell, line, left, top, shownRows, shownColumns } = layout;
  const g = penOf(canvas, layout.width, layout.height);
  g.imageSmoothingEnabled = Math.min(cell, line) * (devicePixelRatio || 1) < 1 && !props.paint;
  if (!props.paint) g.drawImage(colours(), left, top, shownColumns * cell, shownRows * line);
  else {
    for (let r = 0; r < shownRows; r++)
      for (let c = 0; c < shownColumns; c++)
        props.paint(g, r0 + r, c0 + c, left + c * cell, top + r * line, cell, line);
  }
  if (props.forbidden) hatch(g, props.forbidden, theme, layout, r0, c0);
  if (Math.min(cell, line) >= 14 && !props.paint) {
    g.strokeStyle = tint(theme, "background");
    g.lineWidth = 1;
    g.beginPath();
    for (let r = 0; r <= shownRows; r++) {
      g.moveTo(left, Math.round(top + r * line) + 0.5);
      g.lineTo(left + shownColumns * cell, Math.round(top + r * line) + 0.5);
    }
    for (let c = 0; c <= shownColumns; c++) {
      g.moveTo(Math.round(left + c * cell) + 0.5, top);
      g.lineTo(Math.round(left + c * cell) + 0.5, top + shownRows * line);
    }
    g.stroke();
  }
  if (props.levels) loudness(g, props.levels, layout, c0, tint(theme, "dim"));
  if (props.path) path(g, props.path, layout, r0, c0, theme);
  if (!props.paint) numbers(g, props, theme, layout, r0, c0);
  labels(g, props, layout, r0, c0, cursor, hover, theme);
  // Pointer and cursor are ink on a line of the page, which is seen on every colour; the pointer has a crosshair.
  const across = (row: number, column: number, rows: number, columns: number, wide: number) => {
    // a frame is seen around a tiny cell, and leaves the number of a small one free
    const [x, y] = [cell, line].map((size) => Math.min(size < 16 ? -1 : 0, (size - 5) / 2)) as [number, number];
    inked(g, theme, wide, () =>
      g.strokeRect(
        left + column * cell + x + 0.5,
        top + row * line + y + 0.5,
        columns * cell - 2 * x - 1,
        rows * line - 2 * y - 1,
      ),
    );
  };
  g.save();
  g.beginPath();
  g.rect(left - 2, top - 2, shownColumns * cell + 4, shownRows * line + 4);
  g.clip();
  if (hover) {
    const [r, c] = [hover[0] - r0, hover[1] - c0];
    if (hover[0] >= 0 && !props.paint) across(r, 0, 1, shownColumns, 0.5);
    if (hover[1] >= 0 && !props.paint) across(0, c, shownRows, 1, 0.5);
    if (hover[0] >= 0 && hover[1] >= 0) across(r, c, 1, 1, 1);
  }
  const [row, column] = [cursor[0] - r0, cursor[1] - c0];
  if (row >= 0 && column >= 0 && row < shownRows && column < shownColumns) across(row, column, 1, 1, 2);
  g.restore();
}

// Bars of loudness around a middle line, relative to the loudest column.
function loudness(
  g: CanvasRenderingContext2D,
  levels: number[],
  { cell, left, shownColumns }: Layout,
  c0: number,
  colour: string,
) {
  const loudest = Math.max(...levels) || 1;
  g.fillStyle = colour;
  for (let c = 0; c < shownColumns; c++) {
    const height = Math.max(1, ((STRIP - 6) * levels[c0 + c]!) / loudest);
    g.fillRect(left + c * cell, (STRIP - 6 - height) / 2, cell, height);
  }
}

// The path as steps through the middles of rows, in ink on a line of the page.
function path(
  g: CanvasRenderingContext2D,
  steps: [number, number][],
  { cell, line, left, top, shownRows, shownColumns }: Layout,
  r0: number,
  c0: number,
  theme: Theme,
) {
  g.save();
  g.beginPath();
  g.rect(left, top, shownColumns * cell, shownRows * line);
  g.clip();
  g.beginPath();
  steps.forEach(([first, end], row) => {
    const y = top + (row - r0 + 0.5) * line;
    g.lineTo(left + (first - c0) * cell, y);
    g.lineTo(left + (end - c0) * cell, y);
  });
  inked(g, theme, 2, () => g.stroke());
  g.restore();
}

const HATCH = 6; // pixels between its lines

// Lines over the cells that a mask forbids, run by run of a row.
function hatch(
  g: CanvasRenderingContext2D,
  forbidden: NonNullable<HeatProps["forbidden"]>,
  theme: Theme,
  { cell, line, left, top, shownRows, shownColumns }: Layout,
  r0: number,
  c0: number,
) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = HATCH;
  const pen = tile.getContext("2d")!;
  pen.strokeStyle = tint(theme, "hatch");
  pen.lineWidth = 1;
  pen.beginPath();
  for (const shift of [-HATCH, 0, HATCH]) {
    pen.moveTo(shift, HATCH);
    pen.lineTo(shift + HATCH, 0);
  }
  pen.stroke();
  g.fillStyle = g.createPattern(tile, "repeat")!;
  for (let r = 0; r < shownRows; r++)
    for (let c = 0, start = -1; c <= shownColumns; c++) {
      const inside = c < shownColumns && forbidden(r0 + r, c0 + c);
      if (inside && start < 0) start = c;
      if (!inside && start >= 0) {
        g.fillRect(left + start * cell, top + r * line, (c - start) * cell, line);
        start = -1;
      }
    }
}

function numbers(
  g: CanvasRenderingContext2D,
  props: HeatProps,
  theme: Theme,
  { cell, line, left, top, shownRows, shownColumns, bare }: Layout,
  r0: number,
  c0: number,
) {
  const side = Math.min(cell, line);
  if (bare || side < LEAST_LABEL - 1) return;
  let write = props.text;
  const fitted = () => {
    let longest = 1;
    for (let r = 0; r < shownRows; r++)
      for (let c = 0; c < shownColumns; c++) {
        const text = write(r0 + r, c0 + c);
        // words are condensed instead, and so is 1.00 among numbers below 1, such as .95
        if (/\d/.test(text)) longest = Math.max(longest, text === "1.00" ? 3 : text.length);
      }
    // a letter is 0.6 as wide as high; one alone, which reaches below no line, may fill its cell
    const fitting = longest > 1 ? Math.min(line * 0.85, (cell - 4) / longest / 0.6) : side + 1;
    return Math.floor(Math.min(18, Math.max(13, line / 4), fitting));
  };
  let size = fitted();
  for (let fewer = 0; size < (fewer ? LEAST_LABEL : SMALL_NUMBER) && fewer < 3; fewer++) {
    write = (r, c) => props.text(r, c, fewer).replace(/\b0(?=\.)|%/g, "");
    size = fitted();
  }
  if (size < LEAST_LABEL) return;
  g.font = `${size}px ${FONT}`;
  g.textAlign = "center";
  g.textBaseline = "middle";
  for (let r = 0; r < shownRows; r++)
    for (let c = 0; c < shownColumns; c++) {
      const colour = cellColour(props, theme, r0 + r, c0 + c);
      g.fillStyle = colour ? inkOn(colour) : tint(theme, "dim");
      if (props.forbidden?.(r0 + r, c0 + c)) continue;
      g.fillText(write(r0 + r, c0 + c), left + (c + 0.5) * cell, top + (r + 0.5) * line + 0.5, cell - 4);
    }
}

// The next of 1, 2, 5, 10, 20 …
function round(least: number): number {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, least)));
  return [1, 2, 5, 10].find((n) => n * power >= least)! * power;
}

function labels(
  g: CanvasRenderingContext2D,
  props: HeatProps,
  { cell, line, left, top, shownRows, shownColumns, named, size, upright, width, height }: Layout,
  r0: number,
  c0: number,
  cursor: [number, number],
  hover: [number, number] | null,
  theme: Theme,
) {
  g.textBaseline = "middle";
  // The labels of cursor and pointer are bold, those of all others pale.
  const style = (n: number, axis: 0 | 1) => {
    const current = n === cursor[axis] || n === hover?.[axis];
    g.font = `${current ? "bold " : ""}${size}px ${FONT}`;
    g.fillStyle = tint(theme, current ? "ink" : "dim");
  };
  const wide = textWidth(props.columns.at(-1)!.number, size) + GAP;
  const across = (n: number) => Math.min(left + (n - c0 + 0.5) * cell, width - wide / 2);
  // Numbers stand at round distances, and none of them touches that of the cursor.
  const skipped = (n: number, axis: 0 | 1) => {
    if (named[axis] || n === cursor[axis]) return false;
    const apart = axis ? Math.abs(across(n) - across(cursor[1])) - wide : Math.abs(n - cursor[0]) * line - 2 * size;
    const every = axis ? round(Math.max(48, wide) / cell) : round(48 / line);
    return n % every !== 0 || apart < 0 || (axis && across(n + 1) === across(n));
  };
  for (let r = 0; r < shownRows; r++) {
    const n = r0 + r;
    if (skipped(n, 0)) continue;
    const label = props.rows[n]!;
    const y = Math.min(top + (r + 0.5) * line, height - size / 2);
    g.textAlign = "right";
    style(n, 0);
    g.fillText(named[0] ? shorten(nameOf(label), left - GAP, size) : label.number, left - GAP + 2, y);
  }
  for (let c = 0; c < shownColumns; c++) {
    const n = c0 + c;
    if (skipped(n, 1)) continue;
    const label = props.columns[n]!;
    const x = left + (c + 0.5) * cell;
    style(n, 1);
    if (!named[1]) {
      g.textAlign = "center";
      g.fillText(label.number, across(n), top - 8);
    } else if (upright) {
      g.save();
      g.translate(x, top - GAP + 2);
      g.rotate(-Math.PI / 2);
      g.textAlign = "left";
      g.fillText(shorten(nameOf(label), top - GAP, size), 0, 0);
      g.restore();
    } else {
      g.textAlign = "center";
      g.fillText(shorten(nameOf(label), cell - 4, size), x, top - 11);
    }
  }
}
