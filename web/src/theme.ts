// Light or dark: what the system has, unless the reader chose.
import { useEffect, useState } from "preact/hooks";
import type { Theme } from "./format";

const dark = window.matchMedia("(prefers-color-scheme: dark)");
let chosen: Theme | null = null;
const listeners = new Set<() => void>();

export const theme = (): Theme => chosen ?? (dark.matches ? "dark" : "light");

function tell() {
  document.documentElement.dataset.theme = theme();
  for (const listener of listeners) listener();
}

export function toggleTheme() {
  chosen = theme() === "dark" ? "light" : "dark";
  tell();
}

let printing = false;
export function startTheme() {
  dark.addEventListener("change", tell);
  window.addEventListener("beforeprint", () => {
    printing = true;
    tell();
  });
  window.addEventListener("afterprint", () => {
    printing = false;
    tell();
  });
  tell();
}

export function useTheme(): Theme {
  const [, again] = useState(0);
  useEffect(() => {
    const listener = () => again((n) => n + 1);
    listeners.add(listener);
    return () => {
      listeners.delete(listener);
    };
  }, []);
  return printing ? "light" : theme();
}
