// The row of the cursor: the arithmetic of its cell, its sources and statistics; and its explanation.
import type { ComponentChildren } from "preact";
import { arithmetic, weightText } from "./arithmetic";
import { Dialog } from "./commands";
import { Bar, BarHeading, Dim, Scrolling, Small, Term, Token } from "./elements";
import { exactText, fixed, NOT_ALLOWED, NOT_KNOWN, sizedText } from "./format";
import type { Label } from "./heat";
import type { Head, Scene } from "./model";
import type { Compared, PanelProps, Pointed } from "./panel";

// The number of a cell in two heads that are compared, and how far the second is from the first.
function BothSides({ compared, at, stage }: { compared: Compared; at: Pointed; stage: string }) {
  const [first, second] = compared.heads.map((head) => {
    const query = head ? at.scene.on(head.scene, "queries", at.query) : -1;
    const key = head && at.key !== null ? at.scene.on(head.scene, "keys", at.key) : -1;
    if (!head || query < 0 || key < 0) return undefined;
    return stage === "weights" ? head.weight(query, key) : head.cell(stage, query, key);
  });
  const write = (value: number | undefined) => (value === undefined ? NOT_KNOWN : sizedText(value, 3));
  const moved = first === undefined || second === undefined ? Number.NaN : second - first;
  return (
    <p class="arithmetic" data-sides>
      <Dim>{compared.names[0]} </Dim>
      {write(first)} → <Dim>{compared.names[1]} </Dim>
      {write(second)} <strong>{Number.isFinite(moved) && `${moved > 0 ? "+" : ""}${sizedText(moved, 3)}`}</strong>
    </p>
  );
}

const READERS = 8;

export function RowPanel({
  here,
  place,
  goto,
  hovered,
  at,
  phrases,
  compared,
  words,
  glossary,
}: PanelProps & { phrases: Record<string, string> }) {
  const { scene, head, query, key } = at;
  const { read } = place;
  const other = head?.unit.name !== here.head?.unit.name && head?.unit.name;
  const listed = head?.listed(query) ?? null;
  const statistics = head?.statistics(query) ?? [];
  const near = head?.nearest(query);
  const rest = head?.unlisted(query) ?? null;
  const measures = read ? ["weight"] : listed?.length ? Object.keys(listed[0]!.measures) : [];
  const most = Math.max(1e-9, ...(listed ?? []).map((one) => one.measures[head!.by] ?? 0));
  const exact = head?.exact ?? false;
  const write = (value: number, name: string) => (name === "weight" ? weightText(value) : sizedText(value));
  // A cell of this side as the place of the chosen one; undefined for a token that it lacks.
  const choose = (row: number, column: number | undefined) =>
    column === undefined
      ? undefined
      : () => {
          const [query, key] = [scene.on(here.scene, "queries", row), scene.on(here.scene, "keys", column)];
          if (query >= 0) goto({ query, key: key < 0 ? null : key });
        };
  const line = (
    label: Label | undefined,
    current: boolean,
    share: number,
    go: (() => void) | undefined,
    numbers: ComponentChildren,
  ) => (
    <tr class={current ? "current" : ""}>
      <td class="left">
        <button class="plain" disabled={!go} onClick={go}>
          <Token label={label} />
        </button>
      </td>
      <td class="bars">
        <Bar share={share} />
      </td>
      {numbers}
    </tr>
  );
  // The queries that read the key most, or the sources of the row.
  const lines =
    read && head && key !== null
      ? [...head.readers(key)]
          .sort((a, b) => b[1] - a[1])
          .slice(0, READERS)
          .map(([row, share]) =>
            line(
              scene.queryAxis.tokenLabels[row],
              row === query,
              share,
              choose(row, key),
              <td data-reader={row}>{weightText(share)}</td>,
            ),
          )
      : (!read &&
          listed?.map((one) =>
            line(
              scene.sourceAxis.tokenLabels[one.source],
              one.key === key,
              head!.by === "weight" ? one.measures.weight! : (one.measures[head!.by] ?? 0) / most,
              choose(query, one.key),
              measures.map((name) => (
                <td key={name} data-measure={name} title={exactText(one.measures[name]!)}>
                  {write(one.measures[name]!, name)}
                </td>
              )),
            ),
          )) ||
        null;
  return (
    <section class="card row-panel" aria-label="row" id="panel-row" tabIndex={-1}>
      <h2>
        <Token
          label={(read && key !== null ? scene.keyAxis.tokenLabels[key] : null) ?? scene.queryAxis.tokenLabels[query]}
        />{" "}
        <Dim>{[at.side, other, hovered && words.under].filter(Boolean).join(", ")}</Dim>
      </h2>
      {head && key !== null && (
        <p class="arithmetic" data-arithmetic>
          {read && <bdi>{scene.queryAxis.name(query)} </bdi>}
          <Dim>← </Dim>
          <bdi>{scene.keyAxis.name(key)}</bdi>
          <br />
          {arithmetic(head, query, key)}
        </p>
      )}
      {compared.map((pair) => (
        <BothSides key={pair.names.join()} compared={pair} at={at} stage={place.stage} />
      ))}
      {lines && (
        <table class="data sources">
          <thead>
            <tr>
              <th scope="col">
                {read ? (
                  <>
                    <bdi>{scene.keyAxis.word(key!)}</bdi> {words.readBy}
                  </>
                ) : (
                  "source"
                )}
              </th>
              <BarHeading />
              {measures.map((name) => (
                <th scope="col" key={name} class="term" title={glossary[name]}>
                  {phrases[name] ?? name}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {lines}
            {!read && rest !== null && (
              <tr class="dim">
                <td class="left" colSpan={2}>
                  <Term title={words.rest}>all others</Term>
                </td>
                <td data-rest>{weightText(rest)}</td>
              </tr>
            )}
          </tbody>
        </table>
      )}
      {!listed && near !== undefined && (
        <p class="dim">
          {words.absent} <button onClick={() => goto({ query: near })}>{scene.queryAxis.name(near)}</button>
        </p>
      )}
      {head && head.leftOut.length > 0 && (
        <Small>
          {words.without} {head.leftOut.join(", ")}
        </Small>
      )}
      {!read && statistics.length > 0 && (
        <dl class="statistics">
          {statistics.map(([name, value]) => (
            <div key={name}>
              <dt title={glossary[name]}>{phrases[name]}</dt>
              <dd data-statistic={name} title={exact ? exactText(value) : undefined}>
                {fixed(value, name === "distance" ? 1 : 2)}
              </dd>
            </div>
          ))}
        </dl>
      )}
      {head && <Small>{words[exact ? "digits" : "rounded"]}</Small>}
    </section>
  );
}

interface ExplainProps {
  scene: Scene;
  head: Head;
  query: number;
  words: Record<string, string>;
  leave: () => void;
}

// Every key of a row, step by step: all stages, the power of e, and the weight.
export function Explain({ scene, head, query, words, leave }: ExplainProps) {
  const stages = scene.record.stages.filter((stage) => head.cell(stage, query, 0) !== undefined);
  const masked = scene.keyAxis.tokenLabels.map((_, key) => head.cell("masked", query, key) ?? Number.NaN);
  const most = Math.max(...masked.filter((score) => !Number.isNaN(score)));
  const best = masked.indexOf(most);
  const weigh = (key: number) => head.cell("weights", query, key) ?? 0;
  const weight = weigh(best);
  // a mean of rows is no softmax
  const known = !/m/.test(head.unit.name) && stages.includes("masked") && Number.isFinite(most) && weight;
  const sink = head.statistics(query).find(([name]) => name === "sink")?.[1];
  const order = masked.map((score, key) => [score, key] as const).sort((a, b) => weigh(b[1]) - weigh(a[1]));
  const write = (value: number) => sizedText(value, 4);
  return (
    <Dialog title={`${head.unit.name}, query ${scene.queryAxis.name(query)}, step by step`} leave={leave}>
      {known ? (
        <>
          <p>
            {words.largest} {write(most)}, at <bdi>{scene.keyAxis.name(best)}</bdi>. {words.power}
            {write(most)}
            {words.divided} <span data-sum>{write(1 / weight)}</span>
            {sink !== undefined && words.sunk}.
          </p>
          <Scrolling label="steps">
            <table class="data">
              <thead>
                <tr>
                  <th scope="col">key</th>
                  {stages.map((stage) => (
                    <th scope="col" key={stage}>
                      {stage === "weights" ? "e^(…)" : stage}
                    </th>
                  ))}
                  <th scope="col">weight</th>
                  <BarHeading />
                </tr>
              </thead>
              <tbody>
                {order.map(([score, key]) => (
                  <tr key={key} class={key === best ? "current" : ""}>
                    <th scope="row" title={scene.keyAxis.name(key)}>
                      <bdi>{scene.keyAxis.name(key)}</bdi>
                    </th>
                    {stages.map((stage) => (
                      <td key={stage}>
                        {stage === "weights"
                          ? write(Math.exp(score - most))
                          : score === -Infinity && stage === "masked"
                            ? NOT_ALLOWED
                            : write(head.cell(stage, query, key)!)}
                      </td>
                    ))}
                    <td>{write(weigh(key))}</td>
                    <td class="bars">
                      <Bar share={weigh(key)} />
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          </Scrolling>
        </>
      ) : (
        <p>{words.unexplained}</p>
      )}
    </Dialog>
  );
}
