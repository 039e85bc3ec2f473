// The row of the cursor: the arithmetic of its cell, its sources and statistics; its explanation; and predictions.
import { arithmetic, weightText } from "./arithmetic";
import { Dialog } from "./commands";
import { Bar, BarHeading, Dim, Scrolling, Small, Token } from "./elements";
import { exactText, fixed, sizedText } from "./format";
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
  const write = (value: number | undefined) => (value === undefined ? "not known" : sizedText(value, 3));
  const moved = first === undefined || second === undefined ? Number.NaN : second - first;
  return (
    <p class="arithmetic" data-sides>
      <Dim>{compared.names[0]} </Dim>
      {write(first)} → <Dim>{compared.names[1]} </Dim>
      {write(second)} <strong>{Number.isFinite(moved) && `${moved > 0 ? "+" : ""}${sizedText(moved)}`}</strong>
    </p>
  );
}

const READERS = 8;

// The queries that read a key most.
function Readers({
  head,
  chosen,
  column,
  goto,
}: {
  head: Head;
  chosen: number;
  column: number;
  goto: PanelProps["goto"];
}) {
  const { queryAxis: queries, keyAxis: keys } = head.scene;
  const readers = [...head.readers(column)].sort((a, b) => b[1] - a[1]);
  return (
    <table class="data sources">
      <thead>
        <tr>
          <th scope="col">
            <bdi>{keys.tokenLabels[column]?.name}</bdi> is read by
          </th>
          <BarHeading />
          <th scope="col">weight</th>
        </tr>
      </thead>
      <tbody>
        {readers.slice(0, READERS).map(([query, share]) => (
          <tr key={query} class={query === chosen ? "current" : ""}>
            <td class="left">
              <button class="plain" onClick={() => goto({ query, key: column })}>
                <Token label={queries.tokenLabels[query]} />
              </button>
            </td>
            <td class="bars">
              <Bar share={share} />
            </td>
            <td data-reader={query}>{weightText(share)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

export function RowPanel({
  scene: chosenScene,
  head: chosenHead,
  place,
  cursorKey,
  goto,
  hovered,
  phrases,
  compared,
  words,
  glossary,
  side,
}: PanelProps & { phrases: Record<string, string>; side: string }) {
  const chosen = { scene: chosenScene, head: chosenHead, side, query: place.spot.query, key: cursorKey };
  const at: Pointed = hovered ?? chosen;
  const { scene, head, query, key } = at;
  const listed = head?.listed(query) ?? null;
  const statistics = head?.statistics(query) ?? [];
  const near = head?.nearest(query);
  const rest = head?.unlisted(query) ?? null;
  const measures = listed?.length ? Object.keys(listed[0]!.measures) : [];
  const most = Math.max(1e-9, ...(listed ?? []).map((one) => one.measures[head!.by] ?? 0));
  const exact = head?.exact ?? false;
  const write = (value: number, name: string) => (name === "weight" ? weightText(value) : sizedText(value));
  return (
    <section class="card row-panel" aria-label="row" id="panel-row" tabIndex={-1}>
      <h2>
        <Token
          label={
            (place.read && key !== null ? scene.keyAxis.tokenLabels[key] : null) ?? scene.queryAxis.tokenLabels[query]
          }
        />{" "}
        <Dim>{[at.side, hovered && "under the pointer"].filter(Boolean).join(", ")}</Dim>
      </h2>
      {head && key !== null && (
        <p class="arithmetic" data-arithmetic>
          {place.read && <bdi>{scene.queryAxis.name(query)} </bdi>}
          <Dim>← </Dim>
          <bdi>{scene.keyAxis.name(key)}</bdi>
          <br />
          {arithmetic(head, query, key)}
        </p>
      )}
      {compared.map((pair) => (
        <BothSides key={pair.names.join()} compared={pair} at={at} stage={place.stage} />
      ))}
      {place.read && head && key !== null && <Readers head={head} chosen={query} column={key} goto={goto} />}
      <table class="data sources" hidden={!listed || place.read}>
        <thead>
          <tr>
            <th scope="col">source</th>
            <BarHeading />
            {measures.map((name) => (
              <th scope="col" key={name} class="term" title={glossary[name]}>
                {phrases[name] ?? name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {(listed ?? []).map((one, rank) => (
            <tr key={rank} class={one.key === key ? "current" : ""}>
              <td class="left">
                <button
                  class="plain"
                  disabled={one.key === undefined}
                  onClick={() => {
                    const [row, column] = [scene.on(chosenScene, "queries", query), one.key ?? -1];
                    const there = column < 0 ? -1 : scene.on(chosenScene, "keys", column);
                    if (row >= 0) goto({ query: row, key: there < 0 ? null : there });
                  }}
                >
                  <Token label={scene.sourceAxis.tokenLabels[one.source]} />
                </button>
              </td>
              <td class="bars">
                <Bar share={head!.by === "weight" ? one.measures.weight! : (one.measures[head!.by] ?? 0) / most} />
              </td>
              {measures.map((name) => (
                <td key={name} data-measure={name} title={exactText(one.measures[name]!)}>
                  {write(one.measures[name]!, name)}
                </td>
              ))}
            </tr>
          ))}
          {rest !== null && (
            <tr class="dim">
              <td class="left" colSpan={2}>
                <span class="term" title={words.rest}>
                  all others
                </span>
              </td>
              <td data-rest>{weightText(rest)}</td>
            </tr>
          )}
        </tbody>
      </table>
      {!listed && near !== undefined && (
        <p class="dim">
          {words.absent} <button onClick={() => goto({ query: near })}>{scene.queryAxis.name(near)}</button>
        </p>
      )}
      {head && head.leftOut.length > 0 && <Small>left out of the ranking: {head.leftOut.join(", ")}</Small>}
      {!place.read && statistics.length > 0 && (
        <dl class="statistics">
          {statistics
            .filter(([name]) => name in phrases)
            .map(([name, value]) => (
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
  const weight = head.cell("weights", query, best);
  const known = stages.includes("masked") && stages.includes("weights") && Number.isFinite(most) && weight;
  const sink = head.statistics(query).find(([name]) => name === "sink")?.[1];
  const weigh = (key: number) => head.cell("weights", query, key) ?? 0;
  const order = masked.map((score, key) => [score, key] as const).sort((a, b) => weigh(b[1]) - weigh(a[1]));
  const write = (value: number) => sizedText(value, 4);
  return (
    <Dialog title={`${head.unit.name}, query ${scene.queryAxis.name(query)}, step by step`} leave={leave}>
      {known ? (
        <>
          <p>
            {words.largest} {write(most)}, at <bdi>{scene.keyAxis.name(best)}</bdi>. {words.power}
            {write(most)}), divided by the sum of these, <span data-sum>{write(1 / weight)}</span>
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
                            ? "not allowed"
                            : write(head.cell(stage, query, key)!)}
                      </td>
                    ))}
                    <td>{write(head.cell("weights", query, key)!)}</td>
                    <td class="bars">
                      <Bar share={head.cell("weights", query, key)!} />
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
