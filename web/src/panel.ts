// What every panel of a walk is given.
import type { Head, Scene } from "./model";
import type { Place, Spot } from "./spot";

export interface PanelProps {
  scene: Scene;
  head: Head | null;
  place: Place;
  cursorKey: number | null;
  act: (name: string, value?: number | string | null) => void;
  goto: (changes: Partial<Spot>) => void;
  hovered: [query: number, key: number | null] | null;
  setHovered: (cell: [number, number | null] | null) => void;
  words: Record<string, string>;
}
