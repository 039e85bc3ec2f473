// What JSX becomes, in every file: see build.mjs.
export { Fragment, h } from "preact";

// Functions that many lines call, and the root: build.mjs writes these names in their place, which are a letter in the script.
export const { max: $max, min: $min, floor: $floor, round: $round, abs: $abs } = Math;
export const { from: $from } = Array;
export const { entries: $entries } = Object;
const page = document; // by its name, these would be replaced, too
export const $create = page.createElement.bind(page);
export const $find = page.getElementById.bind(page);
export const { documentElement: $root } = page;
