// Light or dark: what the system has, unless the reader chose; paper is light.
import type { Theme } from "./format";

const dark = window.matchMedia("(prefers-color-scheme: dark)");
let chosen: Theme | null = null;
let printing = false;
let redraw = () => {};

export const theme = (): Theme => (printing ? "light" : (chosen ?? (dark.matches ? "dark" : "light")));

function change() {
  document.documentElement.dataset.theme = theme();
  redraw();
}

export function toggleTheme() {
  chosen = theme() === "dark" ? "light" : "dark";
  change();
}

export function startTheme(draw: () => void) {
  redraw = draw;
  dark.addEventListener("change", change);
  for (const name of ["beforeprint", "afterprint"])
    window.addEventListener(name, () => {
      printing = name[0] === "b";
      change();
    });
  change();
}
