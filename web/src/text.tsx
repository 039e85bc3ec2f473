// The text, with the sources of a query shaded; or two columns of tokens with lines from each query to its sources.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { css, inkOn, ramp } from "./format";
import type { Head, Scene } from "./model";
import { theme as currentTheme } from "./theme";

interface Props {
  scene: Scene;
  head: Head | null;
  query: number;
  cursor: number | null; // the key
  hovered: number | null; // a query that another panel points at
  onQuery: (query: number) => void;
  onHover: (query: number | null) => void;
  found: ReadonlySet<number>;
}

export function TextPanel(props: Props) {
  const [lines, setLines] = useState(false);
  return (
    <section class="card text-panel" aria-label="text">
      <div class="bar">
        <h2>Text</h2>
        <span class="dim hint">
          {lines ? "lines from a query to its sources" : "sources of the token under the pointer are shaded"}
        </span>
        <button type="button" aria-pressed={lines} onClick={() => setLines(!lines)}>
          lines
        </button>
      </div>
      {lines ? <Lines {...props} /> : <Shaded {...props} />}
    </section>
  );
}

const AT_ONCE = 1000; // passages that are drawn in one task

function Shaded({ scene, head, query, cursor, hovered, onQuery, onHover, found }: Props) {
  const theme = currentTheme();
  const box = useRef<HTMLDivElement>(null);
  const painted = useRef<HTMLElement[]>([]);
  const [count, setCount] = useState(AT_ONCE);
  useEffect(() => {
    if (count < scene.data.passages.length) setTimeout(() => setCount(count * 4)); // the rest of a long text later
  }, [count, scene]);
  const pieces = useMemo(
    () =>
      scene.data.passages.slice(0, count).map(([text, q, k], n) =>
        q < 0 && k < 0 ? (
          text
        ) : (
          <bdi key={n} class="token" data-q={q < 0 ? undefined : q} data-k={k < 0 ? undefined : k}>
            {text}
          </bdi>
        ),
      ),
    [scene, count],
  );
  const places = useMemo(() => {
    const queries = new Map<number, number>();
    const keys = new Map<number, number>();
    let n = 0;
    for (const [, q, k] of scene.data.passages) {
      if (q < 0 && k < 0) continue;
      if (q >= 0) queries.set(q, n);
      if (k >= 0) keys.set(k, n);
      n++;
    }
    return { queries, keys };
  }, [scene]);

  useLayoutEffect(() => {
    const tokens = box.current!.getElementsByClassName("token");
    for (const token of painted.current) {
      token.style.background = token.style.color = "";
      token.classList.remove("query", "key", "found");
    }
    painted.current = [];
    const touch = (n: number | undefined) => {
      const token = n === undefined ? undefined : (tokens[n] as HTMLElement);
      if (token) painted.current.push(token);
      return token;
    };
    const row = hovered ?? query;
    const colours = ramp(theme, false);
    for (const [key, share] of head?.shares(row) ?? []) {
      if (share < 0.004) continue;
      const token = touch(places.keys.get(key));
      if (!token) continue;
      const colour = colours[Math.round(Math.sqrt(share) * 256)]!;
      token.style.background = css(colour);
      token.style.color = inkOn(colour);
    }
    for (const q of found) touch(places.queries.get(q))?.classList.add("found");
    touch(places.queries.get(row))?.classList.add("query");
    if (cursor !== null) touch(places.keys.get(cursor))?.classList.add("key");
  });

  useEffect(() => {
    const token = box.current!.getElementsByClassName("token")[places.queries.get(query) ?? 0] as HTMLElement;
    if (token) reveal(box.current!, token.offsetTop - box.current!.offsetTop);
  }, [query, scene, count]);

  const at = (event: Event): number | null => {
    const q = (event.target as HTMLElement).dataset?.q;
    return q === undefined ? null : Number(q);
  };
  return (
    // biome-ignore lint/a11y/useKeyWithClickEvents: arrow keys move through the text
    <div
      id="panel-text"
      ref={box}
      class="flow"
      role="group"
      tabIndex={0}
      aria-label="The text; arrow keys go from token to token"
      onClick={(event) => {
        const q = at(event);
        if (q !== null) onQuery(q);
      }}
      onPointerOver={(event) => onHover(at(event))}
      onPointerLeave={() => onHover(null)}
    >
      {pieces}
    </div>
  );
}

// Scrolls to a line of a panel, unless it is in sight.
function reveal(panel: HTMLElement, top: number) {
  if (top < panel.scrollTop || top > panel.scrollTop + panel.clientHeight - 30) panel.scrollTop = top - 60;
}

const LINE = 20;
const MOST = 160; // tokens on each side

function Lines({ scene, head, query, hovered, onQuery, onHover }: Props) {
  const theme = currentTheme();
  const row = hovered ?? query;
  const window = (count: number) => {
    const start = Math.max(0, Math.min(query - MOST / 2, count - MOST));
    return [Math.floor(start), Math.min(count, Math.floor(start) + MOST)] as const;
  };
  const [q0, q1] = window(scene.queries.length);
  const [k0, k1] = window(scene.keys.length);
  const height = Math.max(q1 - q0, k1 - k0) * LINE;
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => reveal(box.current!, (query - q0) * LINE), [query, scene]);
  const every = (q1 - q0) * (k1 - k0) <= 1024;
  const ink = css(ramp(theme, false)[200]!);
  const lines: { q: number; k: number; share: number; strong: boolean }[] = [];
  for (let q = q0; q < q1; q++) {
    if (q !== row && !every) continue;
    for (const [k, share] of head?.shares(q) ?? [])
      if (k >= k0 && k < k1 && share > (q === row ? 0.005 : 0.05)) lines.push({ q, k, share, strong: q === row });
  }
  const side = (labels: { number: string; name: string }[], from: number, to: number, left: boolean) =>
    labels.slice(from, to).map((label, n) => (
      // biome-ignore lint/a11y/useKeyWithClickEvents: arrow keys go from query to query
      // biome-ignore lint/a11y/noStaticElementInteractions: see above
      <div
        key={from + n}
        class={`line-token ${left && from + n === row ? "query" : ""}`}
        onClick={() => left && onQuery(from + n)}
        onPointerEnter={() => left && onHover(from + n)}
      >
        <bdi>{label.name}</bdi> <span class="number">{label.number}</span>
      </div>
    ));
  return (
    <div
      id="panel-text"
      ref={box}
      class="lines"
      role="group"
      tabIndex={0}
      aria-label="Queries on the left, sources on the right"
      onPointerLeave={() => onHover(null)}
    >
      <div class="left">{side(scene.queries.labels, q0, q1, true)}</div>
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
      <div>{side(scene.keys.labels, k0, k1, false)}</div>
    </div>
  );
}
