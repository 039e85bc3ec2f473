import type { Data, Header } from "./data";
export function Walk(_: { node: unknown; data: Data; header: Header }) {
  return <p>…</p>;
}
