// The lens: one cell in all heads, or of one row the strongest source of every head that is no sink.
import { useMemo, useRef } from "preact/hooks";
import { weightText } from "./arithmetic";
import { Bar, Dim, Term, Typed, Word } from "./elements";
import { NOT_KNOWN, probabilityText, sizedText } from "./format";
import type { Head, Scene } from "./model";
import { type PanelProps, stacked } from "./panel";
import { percent } from "./pictures";
import { LENS, type Spot } from "./spot";

// What a head has of a cell.
export interface Seen {
  layer: number;
  head: number;
  index: number; // among all heads
  name: string;
  query: number;
  key: number;
  weight: number; // NaN if it is not known
  bound: boolean; // the weight is at most that
  value: number | undefined; // weight·‖v‖, if it is listed
  passed?: boolean; // sinks and the token itself were passed over
}

export function inHead(head: Head, query: number, key: number): Seen {
  const [layer, number] = head.unit.at;
  const exact = head.weight(query, key);
  const most = exact === undefined ? head.least(query) : undefined;
  return {
    layer,
    head: number,
    index: layer * head.scene.record.heads.length + number,
    name: head.unit.name,
    query,
    key,
    weight: exact ?? most ?? Number.NaN,
    bound: most !== undefined,
    value: head.listed(query)?.find((one) => one.key === key)?.measures.value,
  };
}

// Whether a row rests on a key: on a sink, or on its own token.
const restsOn = ({ sinks, keyAxis, queryAxis }: Scene, query: number, key: number) =>
  sinks.has(key) || keyAxis.tokenPositions[key] === queryAxis.tokenPositions[query];

// The strongest cell of a row: one that it doesn't rest on, or any.
function strongest(head: Head, query: number, any: boolean): Seen | null {
  let [most, found] = [0, -1];
  head.eachShare(query, (at, share) => {
    if (share > most && (any || !restsOn(head.scene, query, at))) [most, found] = [share, at];
  });
  return found < 0 ? null : { ...inHead(head, query, found), passed: !any };
}

// The head of a layer that writes most into a row, past sinks, and the key that it reads for that; as
// views/walk/cell.strongest_writer.
export function strongestWriter(scene: Scene, layer: number, query: number): { head: number; key: number } | null {
  for (const measure of ["value", "weight"]) {
    let [most, found] = [0, null as { head: number; key: number } | null];
    scene.record.heads.forEach((_, head) => {
      for (const { key, measures } of scene.head(layer, head)?.listed(query) ?? []) {
        const amount = measures[measure] ?? 0;
        if (key !== undefined && amount > most && !restsOn(scene, query, key)) [most, found] = [amount, { head, key }];
      }
    });
    if (found) return found;
  }
  return null;
}

// Heads by layer and head: null for those of which nothing is known. Of a row that reads nothing but sinks and itself in
// all heads, these are shown.
export function seenInHeads(scene: Scene, spot: Spot, any = false): (Seen | null)[][] {
  const { query, key } = spot;
  const seen = scene.record.layers.map((_, layer) =>
    scene.record.heads.map((_, number) => {
      const head = scene.head(layer, number);
      if (!head) return null;
      return key === null ? strongest(head, query, any) : inHead(head, query, key);
    }),
  );
  return any || seen.flat().some(Boolean) ? seen : seenInHeads(scene, spot, true);
}

export const useLens = (scene: Scene, display: string, spot: Spot): (Seen | null)[][] | null =>
  useMemo(() => (display === LENS ? seenInHeads(scene, spot) : null), [scene, display, spot.query, spot.key]);

const LISTED = 9; // heads with a key of their own

const amountOf = ({ weight, bound }: Seen) =>
  Number.isNaN(weight) ? NOT_KNOWN : `${bound ? "at most " : ""}${weightText(weight)}`;

export const sayOf = (scene: Scene, seen: Seen): string =>
  `${seen.name}: ${scene.queryAxis.name(seen.query)} ← ${scene.keyAxis.name(seen.key)}: ${amountOf(seen)}`;

// The heads that have most of what the lens shows, strongest first.
function ranked(seen: (Seen | null)[][]): Seen[] {
  const known = seen
    .flat()
    .filter((one): one is Seen => one !== null && !one.bound && one.weight > 0 && !/m/.test(one.name)); // no mean
  return known.sort((a, b) => b.weight - a.weight);
}

const sizeOf = (effect: number) => Math.abs(effect) || 0;

// The rank of a head among all.
const rankOf = (all: ArrayLike<number>, own: number) =>
  Array.from(all, sizeOf).filter((size) => size > sizeOf(all[own]!)).length + 1;

// How many heads have a rank: a mean has none.
const countOf = (all: ArrayLike<number>) => Array.from(all).filter(Number.isFinite).length;

function effectText(scene: Scene, value: number): string {
  const { ending } = scene.ofCuts!;
  return ending === "%" ? percent(value) : sizedText(value) + ending;
}

// Without the head: “far” after “too” 60 → 59 %.
function Moved({ scene, own, words }: { scene: Scene; own: number; words: PanelProps["words"] }) {
  const { before, after, positions, tokens, preposition } = scene.record.effects!;
  if (!before || !after) return words.states;
  return (
    <>
      {positions.slice(0, 3).map((position, n) => {
        const shares = [scene.store.numbers(before)[n]!, scene.ofToken(after, n)[own]!];
        return (
          <span key={position} data-moved={position}>
            <Word name={tokens[n]} /> {preposition}{" "}
            <Word name={scene.queryAxis.word(scene.queryAxis.find(position) ?? -1)} />{" "}
            {shares.map(probabilityText).join(" → ")},{" "}
          </span>
        );
      })}
      {positions.length > 3 && `and ${positions.length - 3} more, on average `}
    </>
  );
}

// What the model loses without a head: the effect if it was measured, or else the command that measures it; and which of
// the heads that are listed beside it the model would miss more.
function Effect({ scene, seen, words, glossary, about }: PanelProps & { seen: (Seen | null)[][]; about: Seen }) {
  const { command, effects, noEffects, elsewhere } = scene.record;
  const { name, index: own } = about;
  const all = scene.effects;
  const size = (one: Seen) => sizeOf(all![one.index]!);
  const strong = ranked(seen).slice(0, LISTED);
  const [most] = all ? [...strong].sort((a, b) => size(b) - size(a)) : [];
  return (
    <>
      {" "}
      Does {name} <Term title={glossary.effect}>matter</Term>?{" "}
      {all ? (
        <>
          <b>{scene.ofCuts!.words!.find(([smallest]) => size(about) >= smallest)![1]}:</b>{" "}
          {effects && (
            <>
              without it, <Moved scene={scene} own={own} words={words} />
            </>
          )}
          {effectText(scene, all[own]!)}, number {rankOf(all, own)} of {countOf(all)} heads.{" "}
          {most && size(most) > size(about) && (
            <>
              {[strong.length, most.name, effectText(scene, all[most.index]!)].reduce(
                (said: string, one) => said.replace("{}", `${one}`),
                words.more!,
              )}{" "}
            </>
          )}
          {!effects && <Dim>{scene.ofCuts!.meaning}</Dim>}
        </>
      ) : (
        <>
          {noEffects}
          {elsewhere && `${words.elsewhere} `}
          <Typed command={`${command.replace("scope run", "scope ablate")} --cut ${name}`} />
        </>
      )}
    </>
  );
}

// The strongest head of a cell, or the one that was chosen there, and whether it matters. Of a word alone, the question
// is first which word it is to read.
function Matters(props: PanelProps & { seen: (Seen | null)[][] }) {
  const { scene, seen, place, words, lensSpot, here } = props;
  const { layer, head } = place.spot;
  const [most] = ranked(seen);
  const alone = lensSpot.key === null && !scene.record.pictures;
  // Of a row, the chosen head is about what it reads most, be that a sink.
  const about =
    (!place.headChosen && most) ||
    (alone ? strongest(scene.head(layer, head)!, lensSpot.query, true) : seen[layer]![head]);
  if (!most && scene.forbids(lensSpot.query, lensSpot.key)) return <p class="small matters">{words.notAllowed}</p>;
  if (!about || (!scene.effects && !scene.record.command)) return null;
  const { name, query } = about;
  return (
    <p class="small matters">
      {alone && (
        <b class="pair">
          <Word name={scene.queryAxis.word(query)} /> {words.pair}
        </b>
      )}
      <b>{name}</b> has <b>{amountOf(about)}</b> at <Cell scene={scene} query={query} reads={about.key} />
      {here.side && <Dim> ({here.side})</Dim>}
      {scene.sinks.has(about.key) && (
        <>
          , a <Term title={props.glossary.sinks}>sink</Term>
        </>
      )}
      {about === most &&
        (alone
          ? most.passed && words.ofRow
          : words[seen.flat().some((one) => one?.bound && one.weight > most.weight) ? "ofListed" : "ofCell"])}
      .
      {name !== scene.headName(layer, head) && (
        <>
          {" "}
          <button class="plain" onClick={() => props.goto({ layer: about.layer, head: about.head })}>
            {words.open} {name}.
          </button>
        </>
      )}
      {(!alone || place.headChosen) && !/m/.test(name) && <Effect {...props} about={about} />}
    </p>
  );
}

// What the page answers first: of the lens, whether its head matters; of what heads show first, where there is most.
export const Answer = (props: PanelProps) => {
  const { scene, place } = props;
  const { answer, display } = scene.record;
  // Where panels stand below each other, a thumbnail that is touched leaves the matrix out of sight.
  const touched = place.headChosen && place.display === "thumbnails" && stacked();
  // The page's own answer stays until a token or a cell is chosen.
  const seen = touched ? seenInHeads(scene, place.spot) : (place.touched || !answer) && props.lens;
  if (seen) return <Matters {...props} seen={seen} />;
  if (place.display !== display || !answer) return null;
  const [layer, head] = scene.record.first;
  const away = layer !== place.spot.layer || head !== place.spot.head;
  return (
    <p class={`small answer${away ? " dim" : ""}`}>
      {answer
        .split(/(content weight)/)
        .map((part, n) => (n % 2 ? <Term title={props.glossary[part]}>{part}</Term> : part))}
      {away && (
        <>
          {" "}
          <button class="plain" onClick={() => props.goto({ layer, head })}>
            Back to {scene.headName(layer, head)}.
          </button>
        </>
      )}
    </p>
  );
};

// A cell in words: “it” ← “animal”.
export const Cell = ({ scene, query, reads }: { scene: Scene; query: number; reads: number }) => (
  <>
    <Word name={scene.queryAxis.word(query)} /> ← <Word name={scene.keyAxis.word(reads)} />
  </>
);

export function LensList(props: PanelProps & { seen: (Seen | null)[][] }) {
  const { scene, seen, lensSpot: spot, goto, glossary, words, here, setHovered } = props;
  const list = useRef<HTMLOListElement>(null);
  const strong = ranked(seen).slice(0, LISTED);
  const all = scene.effects;
  const go = (one: Seen) => goto({ layer: one.layer, head: one.head, key: spot.key ?? one.key });
  return (
    <ol
      class="lens"
      ref={list}
      aria-label={words.strong}
      onKeyDown={(event) => {
        const one = strong[Number(event.key) - 1];
        if (!one) return;
        go(one);
        event.preventDefault();
        event.stopPropagation();
      }}
    >
      {spot.key === null && !strong.some((one) => scene.sinks.has(one.key)) && <li class="dim">{words.past}</li>}
      {all && strong.length > 0 && (
        <li class="small effects">
          <Term title={glossary.effect}>effect of a cut</Term> · rank of {countOf(all)}
        </li>
      )}
      {strong.map((one, rank) => (
        <li key={rank}>
          <button
            class="plain"
            id={rank ? undefined : "lens-first"}
            aria-current={one.layer === spot.layer && one.head === spot.head}
            title={one.value === undefined ? undefined : `weight·‖v‖ ${sizedText(one.value)}`}
            onClick={() => go(one)}
            onPointerEnter={() =>
              setHovered({ ...here, key: spot.key ?? one.key, head: scene.head(one.layer, one.head), ofHead: 1 })
            }
            onPointerLeave={() => setHovered(null)}
          >
            <kbd>{rank + 1}</kbd> <b>{one.name}</b> {spot.key === null && <bdi>{scene.keyAxis.name(one.key)}</bdi>}
            <Bar share={one.weight} />
            <span data-lens={one.name}>{weightText(one.weight)}</span>
            {all && (
              <span class="dim effect" data-effect={one.name} title={glossary.effect}>
                {effectText(scene, all[one.index]!)} · #{rankOf(all, one.index)}
              </span>
            )}
          </button>
        </li>
      ))}
      {!strong.length && <li class="dim">no head</li>}
    </ol>
  );
}
