// What every panel of a walk is given.
import type { Scale } from "./format";
import type { Seen } from "./lens";
import type { Head, Scene } from "./model";
import type { Place, Spot } from "./spot";

// A cell that is chosen or pointed at: indices on the axes of its side, whose head may be another than the chosen one.
export interface Pointed {
  scene: Scene;
  head: Head | null;
  side: string;
  query: number;
  key: number | null; // null for the strongest one of the row
  ofHead?: 1; // a head was pointed at: the cell is the chosen one
}

// Two heads that are compared: sides of a comparison, or the pinned head and the chosen one.
export interface Compared {
  names: [string, string];
  heads: [Head | null, Head | null];
}

export interface PanelProps {
  scene: Scene;
  head: Head | null;
  place: Place;
  cursorKey: number | null;
  act: (name: string, value?: number | string | null) => void;
  goto: (changes: Partial<Spot>) => void;
  here: Pointed; // what is chosen
  hovered: Pointed | null; // what the pointer is at, wherever that is: a preview of what a click would choose
  at: Pointed; // that, or else what is chosen, with the key that it has
  setHovered: (cell: Pointed | null) => void;
  compared: Compared[];
  lens: (Seen | null)[][] | null; // what every head has of the cell or row; null if heads show something else
  lensSpot: Spot; // that cell or row
  room: number; // pixels that panels can be high
  words: Record<string, string>;
  glossary: Record<string, string>;
}

// The scale of weights: up to 1, or up to the largest that is on no sink.
export const weightScale = (place: Place, head: Head | null): Scale => ({
  low: 0,
  high: (!place.sinks && head?.largestElsewhere()) || 1,
  signed: false,
  shape: place.shape,
});

// Whether the panels stand below each other, on a narrow screen.
export const stacked = () => innerWidth < 1000;
