// A walk through the heads of a model: layers × heads, the matrix of a head, its row, and the text.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { type Command, Commands } from "./commands";
import type { Data } from "./data";
import { Dim, ThemeButton, type Tree, Typed, tree } from "./elements";
import { palette } from "./format";
import { HeadsPanel } from "./heads";
import { Answer, strongestWriter, useLens } from "./lens";
import { MatrixPanel, Moves } from "./matrix";
import { Scene, type SceneData, shownStage } from "./model";
import { type Compared, type Pointed, stacked } from "./panel";
import { PicturePanel } from "./pictures";
import { Explain, RowPanel } from "./row";
import { exportsOf } from "./save";
import { apply, type Bounds, fit, fragment, LENS, type Place, placeOf, type Spot, startOf, touch, visit } from "./spot";
import { TextPanel } from "./text";

interface Key {
  name: string;
  keys: string[];
  spelled: string;
  help: string;
  group: string;
  together?: [string, string] | null; // text and keys of its line in the help; null if it is in another's
}

interface WalkNode {
  texts: string[];
  masks: string[];
  keys: Key[];
  scenes: SceneData[];
  selects: string[]; // options that say which place of a comparison a command shows
  stageHelp: Record<string, string>;
  phrases: Record<string, string>;
  words: Record<string, string>;
  browserKeys: Record<string, string>;
  glossary: Record<string, string>;
  terms: Record<string, string>; // the same by what panels call them
}

// Keys of the matrix, which know what is in sight.
const IN_MATRIX: Record<string, string> = { zoom_in: "+", zoom_out: "-", page_up: "PageUp", page_down: "PageDown" };
const TITLES: Record<string, string> = { copy: "copy", write: "save", help: "keys", palette: "commands", explain: "" };

export function Walk({ node, data, about }: { node: WalkNode; data: Data; about: Tree[] }) {
  const [scenes] = useState(
    () => new Map(node.scenes.map((scene) => [`${scene.text},${scene.mask}`, new Scene(scene, data)])),
  );
  const sceneAt = (text: number, mask: number) => scenes.get(`${text},${mask}`) ?? scenes.get(`${text},0`);
  const boundsOf = (spot: Spot): Bounds => {
    const scene = sceneAt(spot.text, spot.mask)!;
    const { layers, heads, first, stages, displays } = scene.record;
    return {
      texts: node.texts.length,
      masks: node.masks.length,
      layers: layers.length,
      heads: heads.length,
      has: (layer, head) => scene.head(layer, head),
      first,
      queries: scene.queryAxis.length,
      keys: scene.keyAxis.length,
      stages,
      displays: Object.keys(displays),
    };
  };
  const fitted = (place: Place) => fit(place, boundsOf(place.spot));
  const [place, setPlace] = useState<Place>(() => {
    const scene = sceneAt(0, 0)!;
    const [layer, head] = scene.record.first;
    const start: Place = {
      spot: { text: 0, mask: 0, layer, head, ...startOf(scene) },
      stage: "weights",
      display: scene.record.display,
      pinned: null,
      history: [],
      needle: "",
      predictions: scene.record.predictions.length > 0,
      digits: false,
      shape: palette.shapes[0]!,
      sinks: true,
      read: false,
      touched: scene.record.startKey !== null && !scene.record.answer, // with an answer, the cell is what that is about
      headChosen: false,
    };
    return fitted(placeOf(location.hash, start, sceneAt));
  });
  const [hovered, setHovered] = useState<Pointed | null>(null);
  const [dialog, setDialog] = useState("");
  const [asMatrix, setAsMatrix] = useState(false); // the matrix of a text with pictures, in place of these
  const [said, say] = useState("");
  const needle = useRef<HTMLInputElement>(null);
  const { spot } = place;
  const { words } = node;
  const scene = sceneAt(spot.text, spot.mask)!;
  const bounds = boundsOf(spot);
  const head = scene.head(spot.layer, spot.head);
  const key = spot.key ?? head?.best(spot.query) ?? null;
  const elsewhere = head?.largestElsewhere() || 1;
  // Without sinks, the scale of what is drawn would stay as it is.
  const settled = place.sinks && elsewhere > 0.9 && place.display !== "thumbnails" && !scene.record.pictures;
  const found = useMemo(() => {
    const wanted = place.needle.toLocaleLowerCase();
    const matches = wanted
      ? scene.queryAxis.tokenLabels.flatMap((l, n) => (l.name.toLocaleLowerCase().includes(wanted) ? [n] : []))
      : [];
    return new Set(matches);
  }, [place.needle, scene]);

  useEffect(() => {
    setHovered(null); // it is of the head before, until the pointer moves
    try {
      history.replaceState(null, "", fragment(place, scene));
    } catch {
      // a page in a frame without an address
    }
  }, [place, scene]);
  useEffect(() => {
    // The address may already be that of the place before again, which an effect writes.
    addEventListener("hashchange", ({ newURL }) =>
      setPlace((now) => fitted(placeOf(new URL(newURL).hash, now, sceneAt))),
    );
  }, []); // a walk stays for as long as its page, and so does what listens

  const match = (step: number): number | null => {
    const all = [...found];
    const next = all[step > 0 ? "find" : "findLast"]((n) => (n - spot.query) * step > 0);
    return next ?? all.at(step > 0 ? 0 : -1) ?? null;
  };
  const act = (name: string, value?: number | string | null) => {
    say("");
    if (name === "find") needle.current?.select();
    else if (name === "sinks" && settled) say(words.settled!);
    else if (name in TITLES) setDialog(name);
    else if (/_text$/.test(name)) goto({ text: apply(place, name, bounds).spot.text });
    else if (name === "lens") {
      setPlace((now) => ({ ...now, display: LENS, touched: true }));
      setTimeout(() => document.getElementById("lens-first")?.focus());
    } else if (/_panel$/.test(name)) document.getElementById(`panel-${name.slice(0, -6)}`)?.focus();
    else if (name === "next_match" || name === "previous_match") {
      const next = match(name === "next_match" ? 1 : -1);
      setPlace((now) => apply(now, "found", bounds, next));
      if (next === null) say(words.unfound!);
    } else if (name in IN_MATRIX) {
      document.getElementById("panel-matrix")?.dispatchEvent(new KeyboardEvent("keydown", { key: IN_MATRIX[name] }));
    } else if (name === "follow") {
      const query =
        key === null || !scene.record.aligned ? undefined : scene.queryAxis.find(scene.keyAxis.tokenPositions[key]!);
      const { layers } = scene.record;
      const layer = layers.indexOf(+layers[spot.layer]! - 1);
      if (query === undefined || layer < 0) return say(words[layers[spot.layer] ? "below" : "embeddings"]!);
      const next = strongestWriter(scene, layer, query);
      if (!next) return say(words.alone!);
      setPlace((now) => visit(now, { ...now.spot, layer, query, ...next }));
    } else {
      const { shape, sinks, stage } = apply(place, name, bounds, value);
      if (/stage$/.test(name) && stage !== shownStage(head, stage)) say(words.weights!);
      if (name === "scale") say(words[shape]!);
      if (name === "sinks") say(words[sinks ? "sinks" : "sinkless"]!);
      if (name === "pin" && !place.pinned) say(words.another!);
      const holds = name === "pin" || name === "direction"; // from then on, the cell stays where it is
      setPlace((now) => {
        const next = apply(now, name, bounds, holds ? key : value);
        const { text, mask, query } = next.spot;
        if (/mask$/.test(name)) {
          // the same tokens on another side
          const to = sceneAt(text, mask)!;
          const there = scene.on(to, "keys", next.spot.key ?? -1);
          next.spot = { ...next.spot, query: scene.on(to, "queries", query), key: there < 0 ? null : there };
        }
        const { layer, head } = now.spot;
        const headChosen = next.spot.layer !== layer || next.spot.head !== head;
        return touch(fitted(next), now, scene.record.pictures !== null, headChosen);
      });
    }
  };
  const acting = useRef(act);
  acting.current = act;
  useEffect(() => {
    const table = new Map(node.keys.flatMap((one) => one.keys.map((k): [string, string] => [k, one.name])));
    document.addEventListener("keydown", (event) => {
      const target = event.target as HTMLElement;
      if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
      if (/^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName)) return;
      if (/^(BUTTON|SUMMARY)$/.test(target.tagName) && (event.key === "Enter" || event.key === " ")) return;
      const name = table.get(node.browserKeys[event.key] ?? event.key);
      if (!name) return;
      if (target.classList.contains("scrolling") && /^(page_|up|down|left|right)/.test(name)) return;
      event.preventDefault();
      acting.current(name);
    });
  }, []);

  const [room, above] = useRoom();
  const title = scene.headName(spot.layer, spot.head);
  const { pinned } = place;
  const pinnedName = pinned && scene.headName(pinned.layer, pinned.head);
  const other = pinnedName !== title && pinned; // a head says nothing about itself
  const { command: own, comparison } = scene.record;
  const row = scene.queryAxis.tokenPositions[spot.query];
  const across = sceneAt(spot.text, spot.mask ? 0 : 1)!;
  const options: Record<string, string> = {
    layer: ` --layer ${scene.record.layers[spot.layer]}`,
    head: ` --head ${scene.record.heads[spot.head]}`,
    // a row of two texts has one position if it has the same in both
    query: across.queryAxis.tokenPositions[scene.on(across, "queries", spot.query)] === row ? ` --query ${row}` : "",
  };
  const base = comparison || own;
  const command =
    other && other.mask === spot.mask
      ? /words$|^$/.test(own)
        ? ""
        : `${own.replace("scope run", "scope compare")} --head ${pinnedName} --head ${title} --query ${row}`
      : base && base + node.selects.map((name) => options[name]).join("");
  const goto = (changes: Partial<Spot>) =>
    setPlace((now) => {
      const { text = now.spot.text } = changes;
      if (text === now.spot.text) {
        const next = { ...now, spot: { ...now.spot, ...changes } };
        return touch(fitted(next), now, scene.record.pictures !== null, changes.head !== undefined);
      }
      const other = { ...now.spot, ...startOf(sceneAt(text, now.spot.mask)!), ...changes };
      return fitted({ ...now, spot: other, pinned: null });
    });
  const listed = (): Command[] => {
    const { copies, saves } = exportsOf(scene, head, panel.place, key, command, node, say);
    const all = node.keys.flatMap(({ name: action, help, spelled, group, together }) => {
      const [name, key] = (dialog === "help" && together) || [help, spelled];
      return dialog === "help" && together === null ? [] : { name, key, group, run: () => act(action) };
    });
    // In a list of all commands, its key follows that of the dialog that has it.
    const within = (name: string, commands: Command[]) =>
      commands.map((one) => ({
        ...one,
        key: `${node.keys.find((key) => key.name === name)!.spelled} then ${one.key}`,
      }));
    return { copy: copies, write: saves }[dialog] ?? [...all, ...within("copy", copies), ...within("write", saves)];
  };
  const leave = () => setDialog("");
  const sides = node.masks.map((_, mask) => sceneAt(spot.text, mask)?.head(spot.layer, spot.head) ?? null);
  const compared: Compared[] = [];
  if (sides.length > 1) {
    const second = spot.mask || 1;
    compared.push({ names: [node.masks[0]!, node.masks[second]!], heads: [sides[0]!, sides[second]!] });
  }
  if (other)
    compared.push({
      names: [pinnedName!, title],
      heads: [sceneAt(other.text, other.mask)!.head(other.layer, other.head), head],
    });
  const here: Pointed = { ...spot, scene, head, side: node.masks.length > 1 ? node.masks[spot.mask]! : "" };
  const at = { ...(hovered ?? here) };
  // Where panels stand below each other, the lens is out of sight of what is pointed at, and stays as it is.
  const query = hovered && !hovered.ofHead && !stacked() ? at.scene.on(scene, "queries", at.query) : -1;
  const lensSpot =
    query < 0 ? spot : { ...spot, query, key: at.key === null ? null : at.scene.on(scene, "keys", at.key) };
  at.key ??= at.head?.best(at.query) ?? null;
  const panel = {
    scene,
    head,
    here,
    at,
    lensSpot,
    place: { ...place, stage: shownStage(head, place.stage) },
    cursorKey: key,
    act,
    goto,
    hovered,
    setHovered,
    compared,
    lens: useLens(scene, place.display, lensSpot),
    room,
    words,
    glossary: node.glossary,
  };
  const pictured = scene.record.pictures !== null && !asMatrix && compared.length === 0;
  return (
    // biome-ignore lint/a11y/noStaticElementInteractions: a finger reads what a pointer sees over a term
    // biome-ignore lint/a11y/useKeyWithClickEvents: see above
    <div
      class="walk"
      onClick={({ target }) => {
        const term = (target as Element).closest<HTMLElement>(".term,dt,.said"); // what is said has no title
        if (term) say(term.title);
      }}
    >
      <header class="top">
        <details class="about" open={/look-(alarm|warning)/.test(JSON.stringify(about))}>
          <summary>
            <h1 dir="ltr">
              <bdi>{scene.record.model || "attnscope"}</bdi>{" "}
              <Dim>
                · {scene.record.size} · <bdi>{scene.record.maskName}</bdi>
              </Dim>
            </h1>
          </summary>
          {about.map(tree)}
        </details>
        <div class="controls tools" role="toolbar" aria-label="Tools">
          <button onClick={() => act("scale")} title={`${words[place.shape]} (L)`}>
            {{ sqrt: "√", linear: "linear", log: "log" }[place.shape]} scale
          </button>
          <button
            aria-pressed={!place.sinks}
            disabled={settled}
            onClick={() => act("sinks")}
            title={settled ? words.settled : `${words[place.sinks ? "sinks" : "sinkless"]} (z). ${node.glossary.sinks}`}
          >
            no sinks
          </button>
          <input
            ref={needle}
            type="search"
            placeholder="find /"
            aria-label={words.find}
            value={place.needle}
            onInput={(event) => setPlace({ ...place, needle: event.currentTarget.value })}
            onKeyDown={(event) => {
              if (event.key === "Enter") act(event.shiftKey ? "previous_match" : "next_match");
              if (event.key === "Escape" || event.key === "Enter") document.getElementById("panel-matrix")?.focus();
            }}
          />
          {place.needle && <Dim>{found.size} found</Dim>}
          <button aria-pressed={pinned !== null} onClick={() => act("pin")} title={words[pinned ? "unpin" : "pin"]}>
            {pinned ? `pinned ${pinnedName}` : "pin"}
          </button>
          {["copy", "write", "help"].map((name) => (
            <button key={name} onClick={() => act(name)}>
              {TITLES[name]}
            </button>
          ))}
          <ThemeButton />
        </div>
      </header>
      <div class="above" ref={above}>
        <TextPanel
          {...panel}
          found={found}
          choices={
            <>
              {node.texts.length > 1 && (
                <Choice label="text" items={node.texts} at={spot.text} onChoose={(text) => goto({ text })} />
              )}
              {node.masks.length > 1 && (
                <Choice label="side" items={node.masks} at={spot.mask} onChoose={(mask) => act("mask", mask)} />
              )}
            </>
          }
        />
      </div>
      {stacked() && <Answer {...panel} />}
      {room > 0 && (
        <div class="columns" style={{ "--room": `${room}px` }}>
          <HeadsPanel {...panel} />
          {pictured ? (
            <PicturePanel {...panel} title={title} onMatrix={() => setAsMatrix(true)} />
          ) : (
            <MatrixPanel
              {...panel}
              sceneAt={sceneAt}
              masks={node.masks}
              title={title}
              stageHelp={node.stageHelp}
              onPicture={scene.record.pictures && compared.length === 0 ? () => setAsMatrix(false) : undefined}
            />
          )}
          <div class="aside">
            <RowPanel {...panel} phrases={node.phrases} />
          </div>
        </div>
      )}
      {dialog === "explain" && head ? (
        <Explain scene={scene} head={head} query={spot.query} words={words} leave={leave} />
      ) : (
        dialog && (
          <Commands
            key={dialog}
            title={TITLES[dialog]!}
            commands={listed()}
            words={dialog === "help" ? node.terms : {}}
            leave={leave}
          />
        )
      )}
      <output class="said">{said}</output>
      {compared.map((pair) => (
        <Moves key={pair.names.join()} {...panel} pair={pair} />
      ))}
      {command && (
        <p class="dim command">
          {words.command} {scene.record.elsewhere && words.elsewhere} <Typed command={command} />
        </p>
      )}
    </div>
  );
}

const LINES = 74; // pixels of the header and of gaps
const WIDE = 1600; // pixels of a screen with larger letters, and what lines around pictures take then: see style.css
const LARGER = 20;
const LEAST_ROOM = 430;

// The height that is left for the panels below the text, so that all of them are in sight at once.
function useRoom() {
  const [room, setRoom] = useState(0); // until it is known, there are no panels
  const text = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    const measure = () =>
      setRoom(
        Math.max(
          LEAST_ROOM,
          Math.min(1400, innerHeight - LINES - text.current!.offsetHeight - (innerWidth < WIDE ? 0 : LARGER)),
        ),
      );
    measure();
    new ResizeObserver(measure).observe(text.current!);
    addEventListener("resize", measure);
  }, []);
  return [room, text] as const;
}

function Choice(props: { label: string; items: string[]; at: number; onChoose: (n: number) => void }) {
  return (
    <label>
      <Dim>{props.label}</Dim>{" "}
      <select value={props.at} onChange={(event) => props.onChoose(Number(event.currentTarget.value))}>
        {props.items.map((item, n) => (
          <option key={n} value={n}>
            {item}
          </option>
        ))}
      </select>
    </label>
  );
}
