// What JSX becomes, in every file: see build.mjs.
export { Fragment, h } from "preact";
