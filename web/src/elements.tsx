// Elements that attnscope/views/page/elements.py writes, and the bar of a share. All text becomes text nodes.
import { type ComponentChildren, h } from "preact";
import type { Label } from "./heat";
import { theme, toggleTheme } from "./theme";

export type Tree = string | [string, Record<string, unknown>, ...Tree[]];

export const tree = (node: Tree): ComponentChildren =>
  typeof node === "string" ? node : h(node[0], node[1], ...(node.slice(2) as Tree[]).map(tree));

export function Bar({ share }: { share: number }) {
  return (
    <span class="meter" aria-hidden="true">
      <span style={{ width: `${Math.min(1, share) * 100}%` }} />
    </span>
  );
}

// A word of the text, in quotes.
export const Word = ({ name }: { name: string | undefined }) => (
  <q>
    <bdi>{name}</bdi>
  </q>
);

// A token with its position.
export const Token = ({ label }: { label: Label | undefined }) => (
  <span class="item" title={label?.name}>
    <span class="number">{label?.number}</span> <bdi>{label?.name}</bdi>
  </span>
);

// A term, with what it means.
export const Term = ({ title, children }: { title: string | undefined; children: ComponentChildren }) => (
  <span class="term" title={title}>
    {children}
  </span>
);

export const Dim = (props: { children: ComponentChildren }) => <span class="dim">{props.children}</span>;

export const Small = (props: { children: ComponentChildren }) => <p class="dim small">{props.children}</p>;

// A command, whose lines break before an option, not within one.
export const Typed = ({ command }: { command: string }) => (
  <code tabIndex={0}>
    {command.split(" --").map((part, n) => [n ? " " : "", <span class="item">{n ? `--${part}` : part}</span>])}
  </code>
);

// What scrolls if it is wider than the page, also by keyboard.
export const Scrolling = ({ label, children }: { label: string; children: ComponentChildren }) => (
  <div class="scrolling" role="group" tabIndex={0} aria-label={label}>
    {children}
  </div>
);

// The head of a column of bars.
export const BarHeading = () => (
  <td class="bars">
    <span class="hidden">bar</span>
  </td>
);

// The head that a panel shows, between those before and behind it.
export const HeadNav = (props: { name: string; act: (action: string) => void; meaning?: string }) => (
  <span class="nav">
    <button onClick={() => props.act("previous_head")} aria-label="Previous head" title="[">
      ‹
    </button>
    <strong class="where" id="where" title={props.meaning}>
      {props.name}
    </strong>
    <button onClick={() => props.act("next_head")} aria-label="Next head" title="]">
      ›
    </button>
  </span>
);

export const ThemeButton = () => (
  <button onClick={toggleTheme} aria-label={`Use the ${theme() === "dark" ? "light" : "dark"} theme`}>
    {theme() === "dark" ? "☀" : "☾"}
  </button>
);
