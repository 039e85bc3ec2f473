// The text, with the sources of a query shaded and what the model predicts; and lines from each query to its sources.

import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { weightText } from "./arithmetic";
import { Dim, tree, Word } from "./elements";
import { colourOf, css, inkOn, probabilityText, ramp } from "./format";
import { RIGHT_TO_LEFT } from "./model";
import { type PanelProps, weightScale } from "./panel";
import { clamp } from "./spot";
import { theme as currentTheme } from "./theme";

interface Props extends PanelProps {
  found: ReadonlySet<number>;
}

const SAID = 4; // sources that the line under the text names

export function TextPanel(props: Props & { choices: ComponentChildren }) {
  const { scene, place, hovered, act, choices, glossary, words } = props;
  const { scene: side, query, key } = props.at;
  return (
    <section class="card text-panel" aria-label="text">
      <div class="sentence">
        <Shaded {...props} />
        {place.predictions && scene.record.predictions.length > 0 && <Predictions {...props} />}
      </div>
      <div class="bar">
        {choices}
        <p class="said-of" aria-live="polite">
          {place.touched || hovered ? (
            <Sources {...props} />
          ) : (
            words[place.display === "roles" ? "begin_roles" : scene.record.begin]
          )}
        </p>
        <span class="stages" role="group" aria-label="Direction">
          {[false, true].map((read) => (
            <button
              key={`${read}`}
              aria-pressed={place.read === read}
              title={`${glossary[read ? "read" : "reads"]} (i)`}
              disabled={read && key === null}
              onClick={() => place.read !== read && act("direction")}
            >
              {around(
                words[read ? "who" : "what"]!,
                read ? (side.keyAxis.word(key ?? -1) ?? "…") : side.queryAxis.word(query),
              )}
            </button>
          ))}
        </span>
      </div>
    </section>
  );
}

// A phrase with a word of the text in its place: `what {} reads`.
const around = (phrase: string, name: string | undefined) => {
  const [before, after] = phrase.split("{}");
  return [before, <Word name={name} />, after];
};

// What the model predicts at the chosen token, or else at the first for which it is known.
function Predictions({ scene, place }: Props) {
  const all = scene.record.predictions;
  const one = all.find(({ position }) => scene.queryAxis.find(position) === place.spot.query) ?? all[0]!;
  return (
    <p class="small predictions">
      <Dim>predicted {one.title.map(tree)}:</Dim>
      {one.tokens.map((token, rank) => (
        <span key={rank} class="item">
          {/[\p{L}\p{N}]/u.test(token) ? <bdi>{token}</bdi> : <Word name={token} />}{" "}
          {probabilityText(one.probabilities[rank]!)}
        </span>
      ))}
    </p>
  );
}

// What the chosen token, or that under the pointer, reads most, or who reads it.
function Sources({ place: { read }, at: { scene, head, query, key }, words }: Props) {
  const axis = read ? scene.queryAxis : scene.keyAxis;
  const shares = !head ? [] : read ? (key === null ? [] : [...head.readers(key)]) : [...head.shares(query)];
  const strong = shares.sort((a, b) => b[1] - a[1]).slice(0, SAID);
  return (
    <>
      <Word name={read ? scene.keyAxis.word(key ?? -1) : scene.queryAxis.word(query)} />{" "}
      {words[read ? "readBy" : "reading"]}:{" "}
      {strong.map(([n, share], rank) => (
        <span key={n}>
          {rank ? " · " : ""}
          <bdi>{axis.word(n)}</bdi> {weightText(share)}
        </span>
      ))}
      {!strong.length && words.nothing}
      {head && <Dim> in {head.unit.name}</Dim>}
    </>
  );
}

const AT_ONCE = 1000; // passages that are drawn in one task

// What the texts need of a place: the row, the column, and what a token does that is pointed at or clicked.
function useTokens({ scene, head, place, cursorKey, at, here, goto, setHovered }: PanelProps) {
  const { read } = place;
  // Of sides with the same tokens, the one that the pointer is at is shown.
  const source = !at.scene.record.pairs && !scene.record.pairs ? at.head : head;
  const row = at.scene.on(scene, "queries", at.query);
  const column = at.key === null ? null : at.scene.on(scene, "keys", at.key);
  // What a click chooses, and what the pointer shows before that. With a query chosen, the next token that it may read is
  // the key of the pair; the one after that is a query again.
  const chosen = (q: number | null, k: number | null): { query: number; key: number | null } | null => {
    const { spot, touched } = place;
    if (read && k !== null) return { query: head?.reader(k) ?? spot.query, key: k };
    if (read) return q === null ? null : { query: q, key: cursorKey };
    const next = q === null || (touched && spot.key === null && q !== spot.query && !scene.record.pictures);
    if (next && k !== null && !scene.forbids(spot.query, k)) return { query: spot.query, key: k };
    return q === null ? null : { query: q, key: null };
  };
  return {
    row,
    column,
    shares: () => (!source ? new Map<number, number>() : read ? source.readers(column ?? -1) : source.shares(row)),
    choose: (q: number | null, k: number | null) => {
      const to = chosen(q, k);
      if (to) goto(to);
    },
    point: (q: number | null, k: number | null) => {
      const to = chosen(q, k);
      setHovered(to && { ...here, ...to });
    },
  };
}

function Shaded(props: Props) {
  const { scene, head, found, place, words } = props;
  const { query } = place.spot;
  const { row, column, shares, choose, point } = useTokens(props);
  const theme = currentTheme();
  const box = useRef<HTMLDivElement>(null);
  const painted = useRef<HTMLElement[]>([]);
  const tokensOf = () => box.current!.getElementsByClassName("token") as HTMLCollectionOf<HTMLElement>;
  const [count, setCount] = useState(AT_ONCE);
  useEffect(() => {
    if (count < scene.record.passages.length) setTimeout(() => setCount(count * 4)); // the rest of a long text later
  }, [count, scene]);
  const pieces = useMemo(
    () =>
      // Not isolated from each other: the pieces of a word may follow each other from right to left.
      scene.record.passages
        .slice(0, count)
        .map(([text, q, k], n) =>
          q < 0 && k < 0 ? (
            text
          ) : (
            <span
              key={n}
              class="token"
              data-q={q < 0 ? undefined : q}
              data-k={k < 0 ? undefined : k}
              dir={RIGHT_TO_LEFT.test(text) ? "rtl" : undefined} // a mark before it stays beside it
            >
              {text}
            </span>
          ),
        ),
    [scene, count],
  );
  const places = useMemo(() => {
    const runs = new Map<string, number[]>();
    let n = 0;
    for (const [, q, k] of scene.record.passages) {
      if (q < 0 && k < 0) continue;
      for (const name of [`q${q}`, `k${k}`]) runs.set(name, [...(runs.get(name) ?? []), n]);
      n++;
    }
    return runs;
  }, [scene]);

  useLayoutEffect(() => {
    const tokens = tokensOf();
    for (const token of painted.current) {
      token.style.background = token.style.color = "";
      token.classList.remove("query", "key", "found");
    }
    painted.current = [];
    // a span can be several runs of the text
    const touch = (name: string, mark: (token: HTMLElement) => void) => {
      for (const n of places.get(name) ?? []) {
        const token = tokens[n];
        if (token) {
          painted.current.push(token);
          mark(token);
        }
      }
    };
    const scale = weightScale(place, head);
    for (const [n, share] of shares()) {
      if (share < 0.004) continue;
      const colour = colourOf(theme, scale, share)!;
      touch((place.read ? "q" : "k") + n, ({ style }) => {
        style.background = css(colour);
        style.color = inkOn(colour);
      });
    }
    const name = (run: string, as: string) => touch(run, ({ classList }) => classList.add(as));
    for (const q of found) name(`q${q}`, "found");
    name(`q${row}`, "query");
    name(`k${column}`, "key");
  });

  useEffect(() => {
    const tokens = tokensOf();
    const token = tokens[places.get(`q${query}`)?.[0] ?? 0];
    if (token) reveal(box.current!, token.offsetTop - tokens[0]!.offsetTop);
  }, [query, scene, count]);

  const at = (event: Event): [number | null, number | null] => {
    const { q, k } = (event.target as HTMLElement).dataset ?? {};
    return [q === undefined ? null : Number(q), k === undefined ? null : Number(k)];
  };
  return (
    // biome-ignore lint/a11y/useKeyWithClickEvents: arrow keys move through the text
    <div
      id="panel-text"
      ref={box}
      class="flow"
      role="group"
      tabIndex={0}
      aria-label={words.text}
      onClick={(event) => choose(...at(event))}
      onPointerOver={(event) => point(...at(event))}
      onPointerLeave={() => point(null, null)}
    >
      {pieces}
    </div>
  );
}

// Scrolls to a line of a panel, which then is its first, unless it is in sight: no line is cut.
function reveal(panel: HTMLElement, top: number) {
  if (top < panel.scrollTop || top > panel.scrollTop + panel.clientHeight - 30) panel.scrollTop = top;
}

const LINE = 20;
const MOST = 160; // tokens on each side

export function Lines(props: PanelProps) {
  const { scene, head, place, cursorKey } = props;
  const { read } = place;
  const { query } = place.spot;
  const key = cursorKey ?? 0;
  const { row, column, choose, point } = useTokens(props);
  const theme = currentTheme();
  const window = (count: number) => {
    const start = clamp((read ? key : query) - MOST / 2, count - MOST + 1);
    return [Math.floor(start), Math.min(count, Math.floor(start) + MOST)] as const;
  };
  const [q0, q1] = window(scene.queryAxis.length);
  const [k0, k1] = window(scene.keyAxis.length);
  const height = Math.max(q1 - q0, k1 - k0) * LINE;
  const box = useRef<HTMLDivElement>(null);
  // Both ends of the strongest line are in sight, or else the source.
  const reader = read ? (head?.reader(key) ?? query) : query;
  const source = read ? key : (head?.best(query) ?? query);
  useEffect(() => {
    reveal(box.current!, (reader - q0) * LINE);
    reveal(box.current!, (source - k0) * LINE);
  }, [reader, source, scene]);
  const every = (q1 - q0) * (k1 - k0) <= 1024;
  const ink = css(ramp(theme, false)[200]!);
  const lines: { q: number; k: number; share: number; strong: boolean }[] = [];
  for (let q = q0; q < q1; q++)
    for (const [k, share] of read || every || q === row ? (head?.shares(q) ?? []) : []) {
      const strong = read ? k === column : q === row;
      if (k >= k0 && k < k1 && (strong || every) && share > (strong ? 0.005 : 0.05))
        lines.push({ q, k, share, strong });
    }
  const side = (labels: { number: string; name: string }[], from: number, to: number, left: boolean) =>
    labels.slice(from, to).map((label, n) => (
      // biome-ignore lint/a11y/useKeyWithClickEvents: arrow keys go from query to query
      // biome-ignore lint/a11y/noStaticElementInteractions: see above
      <div
        key={from + n}
        class={`line-token ${left !== read && from + n === (read ? column : row) ? "query" : ""}`}
        onClick={() => (left ? choose(from + n, null) : choose(null, from + n))}
        onPointerEnter={() => (left ? point(from + n, null) : point(null, from + n))}
      >
        <bdi>{label.name}</bdi> <span class="number">{label.number}</span>
      </div>
    ));
  return (
    <div
      id="panel-lines"
      ref={box}
      class="lines"
      role="group"
      tabIndex={0}
      aria-label={props.words.lines}
      onPointerLeave={() => point(null, null)}
    >
      <div class="left">{side(scene.queryAxis.tokenLabels, q0, q1, true)}</div>
      <svg height={height} width="220" aria-hidden="true">
        {lines.map(({ q, k, share, strong }, n) => (
          <line
            key={n}
            x1="0"
            x2="220"
            y1={(q - q0 + 0.5) * LINE}
            y2={(k - k0 + 0.5) * LINE}
            stroke={ink}
            stroke-width={strong ? 2.5 : 1}
            opacity={Math.min(1, strong ? 0.15 + 0.85 * share : share * 0.4)}
          />
        ))}
      </svg>
      <div>{side(scene.keyAxis.tokenLabels, k0, k1, false)}</div>
    </div>
  );
}
