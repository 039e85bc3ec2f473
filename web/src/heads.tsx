// Layers × heads: the lens, thumbnails, roles, or a number of every head.
import { useEffect, useState } from "preact/hooks";
import { Dim, Small, Word } from "./elements";
import { digitsFor, digitsText, exactText, fixed, inkOn, parseHex, type Scale, scaleOf, tint } from "./format";
import { Heat, pixels } from "./heat";
import { Answer, Cell, LensList, sayOf } from "./lens";
import type { Head } from "./model";
import { type PanelProps, stacked, weightScale } from "./panel";
import { montage, percent, pictureScale, summaryOf } from "./pictures";
import { theme as currentTheme } from "./theme";

const SMALL = 32; // cells of a thumbnail
const AT_ONCE = 40; // heads
const pictures = new WeakMap<Head, Map<string, HTMLCanvasElement>>();

// The largest weight in every cell of a small grid, so that nothing strong is lost.
function thumbnail(head: Head, theme: "light" | "dark", scale: Scale, query: number): HTMLCanvasElement | null {
  const pictured = head.scene.record.pictures !== null;
  const name = `${theme} ${scale.shape} ${scale.high} ${pictured ? query : ""}`;
  const known = pictures.get(head)?.get(name);
  if (known) return known;
  const matrix = pictured ? montage(head, query) : head.picture();
  if (!matrix?.rows || !matrix.columns) return null;
  const rows = Math.min(SMALL, matrix.rows);
  const columns = Math.min(SMALL, matrix.columns);
  const most = new Float64Array(rows * columns);
  for (let r = 0; r < matrix.rows; r++)
    for (let c = 0; c < matrix.columns; c++) {
      const at = Math.floor((r * rows) / matrix.rows) * columns + Math.floor((c * columns) / matrix.columns);
      const value = matrix.at(r, c);
      if (value > most[at]!) most[at] = value;
    }
  const value = (r: number, c: number) => most[r * columns + c]!;
  const canvas = pixels({ value, scale }, theme, { shownRows: rows, shownColumns: columns });
  pictures.set(head, (pictures.get(head) ?? new Map()).set(name, canvas));
  return canvas;
}

// Pixels around the picture, those of a list below it, of a remark, and of what the lens says above.
const FRAME = 136;
const LIST = 225;
const REMARK = 60;
const MATTERS = 130;
const ANSWER = 56;
const LETTER = 0.4; // what a letter of a long answer takes in the narrowest panel

export function HeadsPanel(props: PanelProps) {
  const { scene, place, act, goto, room, words, lens, here, setHovered } = props;
  const pointed = props.hovered?.head;
  const theme = currentTheme();
  const [budget, setBudget] = useState(0); // thumbnails of so many heads are made; more follow in the next task
  useEffect(() => {
    if (budget < layers.length * heads.length) setTimeout(() => setBudget(budget + AT_ONCE));
  }, [budget]);
  const { layers, heads, numbers, roles, displays } = scene.record;
  const shown = numbers.find((one) => one.name === place.display);
  const values = shown && scene.store.matrix(shown.values);
  const strength = roles && place.display === "roles" ? scene.store.matrix(roles.strength) : null;
  const main = strength && scene.store.raw(roles!.main);
  const role = (r: number, c: number) => Number(main![r * heads.length + c]);
  // A head is shown on a text that shows its role; one without a role, where one is.
  const roleText = (r: number, c: number) => (strength && roles!.texts[role(r, c)]) ?? place.spot.text;
  // And at the row that shows it best.
  const rows = strength && roles!.rows && scene.store.raw(roles!.rows);
  const roleRow = (r: number, c: number) => {
    const row = rows ? Number(rows[r * heads.length + c]) : -1;
    return row < 0 ? {} : { query: row, key: null };
  };
  const ending = shown?.ending ?? "";
  const inPercent = ending === "%"; // as the answer
  const finite = values ? [...values.data].filter(Number.isFinite) : [];
  const most = Math.max(0, ...finite.map(Math.abs));
  const own = !place.sinks && !lens && !strength && !shown && !scene.record.pictures; // each thumbnail has its own scale
  const { query, key } = props.lensSpot;
  const labels = (letter: string, all: (number | string)[]) =>
    all.map((n) => ({ number: typeof n === "string" ? n : letter + n, name: "" }));
  const tall = layers.length > (lens ? 0.9 : 1.4) * heads.length; // its list has room beside the picture
  return (
    <section class={`card heads-panel ${tall ? "tall" : ""}`} aria-label={words.grid}>
      <div class="bar">
        {lens ? (
          <h2 class="of-tokens">
            {key === null ? (
              <>
                <Word name={scene.queryAxis.word(query)} /> {words.mostly}
              </>
            ) : (
              <Cell scene={scene} query={query} reads={key} />
            )}
            {/* the answer below is not about it */}
            {props.lensSpot !== place.spot && !place.touched && <Dim> {words.under}</Dim>}
          </h2>
        ) : (
          <h2>{words.heads}</h2>
        )}
        <select
          aria-label={words.shows}
          value={place.display}
          onChange={(event) => act("display", event.currentTarget.value)}
        >
          {Object.entries(displays).map(([name, title]) => (
            <option key={name} value={name}>
              {title}
            </option>
          ))}
        </select>
      </div>
      {!stacked() && <Answer {...props} />}
      <div class="picture">
        <Heat
          id="panel-heads"
          rows={labels("L", layers)}
          columns={labels("H", heads)}
          value={
            lens
              ? (r, c) => (lens[r]![c]?.bound ? Number.NaN : (lens[r]![c]?.weight ?? 0))
              : (strength?.at ?? values?.at ?? (() => Number.NaN))
          }
          text={(r, c, fewer = 0) => {
            const seen = lens?.[r]![c];
            if (lens) return !seen?.weight ? "" : seen.bound ? "≤" : fixed(seen.weight, 2).replace("0.", ".");
            if (strength) return roles!.letters[role(r, c)] ?? "?";
            if (!values || Number.isNaN(values.at(r, c))) return "";
            const value = values.at(r, c);
            return inPercent ? percent(value).replace(" ", "") : digitsText(value, digitsFor(most, 2 - fewer));
          }}
          say={(r, c) => {
            const name = scene.headName(r, c);
            const seen = lens?.[r]![c];
            if (lens) return seen ? sayOf(scene, seen) : `${name}: ${words.rests}`;
            if (strength) {
              const known = roles!.names[role(r, c)];
              return `${name}: ${known ? `${known} ${fixed(strength.at(r, c), 2)}` : words.unclear}`;
            }
            if (values)
              return `${name}: ${displays[place.display]} ${inPercent ? `${percent(values.at(r, c))}, ` : ""}${exactText(values.at(r, c))}${inPercent ? "" : ending}`;
            const head = scene.record.pictures && scene.head(r, c);
            return head ? `${name}: ${summaryOf(head, query)}` : name;
          }}
          scale={
            finite.length && !lens && (place.display !== "weight" || finite.some((value) => value < 0))
              ? {
                  ...scaleOf(
                    finite,
                    finite.some((value) => value < 0),
                  ),
                  // one large effect would leave all others white
                  shape: place.display.startsWith("effect") ? place.shape : undefined,
                  factor: inPercent ? 100 : 1,
                }
              : scene.record.pictures && !lens && !strength
                ? pictureScale(scene, place.shape)
                : { ...weightScale({ ...place, sinks: true }, null), unknown: own }
          }
          colours={strength && layers.map((_, r) => heads.map((_, c) => roles!.colours[role(r, c)] ?? ""))}
          label={words.grid!}
          height={Math.max(
            stacked() ? layers.length * 24 : 110,
            room -
              FRAME -
              (lens ? MATTERS : Math.max(ANSWER, LETTER * (scene.record.answer?.length ?? 0))) -
              (strength && tall ? REMARK : 0) -
              ((lens || strength) && !tall ? LIST : 0) -
              (shown ? REMARK : 0),
          )}
          cursor={[place.spot.layer, place.spot.head]}
          onCursor={(layer, head) => goto({ layer, head, text: roleText(layer, head), ...roleRow(layer, head) })}
          pointed={pointed && pointed.unit.name !== here.head?.unit.name ? pointed.unit.at : undefined}
          onHover={(r, c) => {
            const head = r === null || c === null ? null : scene.head(r, c);
            setHovered(head && { ...here, head, ofHead: 1 });
          }}
          onEnter={() => act("matrix_panel")}
          legend={
            (lens?.flat().some((one) => one?.bound) && words.bounds) ||
            (shown && displays[shown.name] + (inPercent ? ", %" : "")) ||
            ""
          }
          square={scene.record.pictures !== null}
          paint={
            values || strength || lens
              ? undefined
              : (g, r, c, x, y, width, height) => {
                  const head = scene.head(r, c);
                  const picture =
                    head &&
                    r * heads.length + c < budget &&
                    thumbnail(
                      head,
                      theme,
                      scene.record.pictures ? pictureScale(scene, place.shape) : weightScale(place, head),
                      query,
                    );
                  const inset = height > 12 ? 1.5 : 0.5;
                  const [left, top, wide, high] = [x + inset, y + inset, width - 2 * inset, height - 2 * inset];
                  g.strokeStyle = g.fillStyle = tint(theme, "unknown");
                  g.strokeRect(x + 0.5, y + 0.5, width - 1, height - 1);
                  // A matrix fills its cell, a picture keeps its shape.
                  const tall = picture && scene.record.pictures ? picture.height / picture.width : 1;
                  if (picture) g.drawImage(picture, left, top, wide / Math.max(1, tall), high * Math.min(1, tall));
                  else g.fillRect(left, top, wide, high);
                }
          }
        />
        {lens && <LensList {...props} seen={lens} />}
        {strength && (
          <ul class="roles">
            {roles!.names.map(
              (name, n) =>
                main!.includes(n as never) && (
                  <li key={name} title={roles!.meanings[n]}>
                    <span
                      class="role"
                      style={{ background: roles!.colours[n], color: inkOn(parseHex(roles!.colours[n]!)) }}
                    >
                      {roles!.letters[n]}
                    </span>{" "}
                    {name}
                  </li>
                ),
            )}
            <li>? {words.unclear}</li>
          </ul>
        )}
      </div>
      {shown && <Small>{shown.meaning}</Small>}
      {strength && <Small>{roles!.measured}</Small>}
      {own && <Small>{words.own}</Small>}
    </section>
  );
}
