// Light or dark: what the system has, unless the reader chose; paper is light.
import { css, palette, ramp, type Theme } from "./format";

const dark = matchMedia("(prefers-color-scheme: dark)");
let chosen: Theme | null = null;
let printing = false;
let redraw = () => {};

export const theme = (): Theme => (printing ? "light" : (chosen ?? (dark.matches ? "dark" : "light")));

const BAR = 0.625; // place of bars on a ramp

export function change() {
  document.documentElement.dataset.theme = theme();
  if (palette) {
    const colours = ramp(theme(), true);
    for (const [name, place] of [
      ["--bar", 0.5 + BAR / 2],
      ["--less", 0.5 - BAR / 2],
    ] as const)
      document.documentElement.style.setProperty(name, css(colours[Math.round(place * 256)]!));
  }
  redraw();
}

export function toggleTheme() {
  chosen = theme() === "dark" ? "light" : "dark";
  change();
}

export function startTheme(draw: () => void) {
  redraw = draw;
  dark.addEventListener("change", change);
  window.onbeforeprint = window.onafterprint = ({ type }: Event) => {
    printing = type[0] === "b";
    change();
  };
  change();
}
