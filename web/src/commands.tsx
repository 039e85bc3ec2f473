// A dialog, and the one that lists commands: the help, the palette, what can be copied and what can be saved.
import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";

export interface Command {
  name: string;
  key: string; // as it is spelled
  group: string;
  run: () => unknown;
}

interface DialogProps {
  title: string;
  leave: () => void;
  onKey?: (event: KeyboardEvent) => void;
  children: ComponentChildren;
}

export function Dialog({ title, leave, onKey, children }: DialogProps) {
  const dialog = useRef<HTMLDialogElement>(null);
  useLayoutEffect(() => {
    const element = dialog.current!;
    element.showModal();
    return () => element.close(); // focus goes back to where it was
  }, []);
  return (
    <dialog ref={dialog} aria-label={title} onCancel={leave} onKeyDown={onKey}>
      <div class="bar">
        <h2>{title}</h2>
        <button onClick={leave} aria-label="Close">
          ✕
        </button>
      </div>
      {children}
    </dialog>
  );
}

const FEW = 8; // commands that need no filter

interface CommandsProps {
  title: string;
  commands: Command[];
  words: Record<string, string>; // terms with what they mean
  leave: () => void;
}

export function Commands({ title, commands, words, leave }: CommandsProps) {
  const [filter, setFilter] = useState("");
  const list = useRef<HTMLDivElement>(null);
  const shown = commands.filter((one) => `${one.group} ${one.name}`.toLowerCase().includes(filter.toLowerCase()));
  const run = (command?: Command) => {
    if (!command) return;
    leave();
    command.run();
  };
  const onKey = (event: KeyboardEvent) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const typing = event.target instanceof HTMLInputElement;
    const named = commands.length <= FEW && commands.find((one) => one.key === event.key);
    if (step) {
      const all = [...list.current!.getElementsByTagName("button")];
      const next = all.indexOf(document.activeElement as HTMLButtonElement) + step;
      all.at(next < 0 ? -1 : next % all.length)?.focus();
    } else if (typing && event.key === "Enter") run(shown[0]);
    else if (named) run(named);
    else return;
    event.preventDefault();
  };
  return (
    <Dialog title={title} leave={leave} onKey={onKey}>
      {commands.length > FEW && (
        <input
          type="search"
          autofocus
          placeholder="find a command"
          onInput={(event) => setFilter(event.currentTarget.value)}
        />
      )}
      <div class={commands.length > FEW ? "commands" : ""} ref={list}>
        {[...new Set(shown.map((one) => one.group))].map((group) => (
          <section key={group} aria-label={group}>
            <h3>{group}</h3>
            {shown
              .filter((one) => one.group === group)
              .map((one) => (
                <button key={one.name} onClick={() => run(one)}>
                  <span>{one.name}</span> <kbd>{one.key}</kbd>
                </button>
              ))}
          </section>
        ))}
      </div>
      {Object.keys(words).length > 0 && !filter && (
        <dl class="words">
          {Object.entries(words).map(([term, meaning]) => (
            <div key={term}>
              <dt>{term}</dt>
              <dd>{meaning}</dd>
            </div>
          ))}
        </dl>
      )}
    </Dialog>
  );
}
