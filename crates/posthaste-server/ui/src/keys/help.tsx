// The keys, in a dialog.

import { Dialog, openDialog } from "../parts/dialog.tsx";
import { GOES } from "./goes.ts";

const KEYS: readonly (readonly [key: string, words: string])[] = [
  ["j", "next row"], ["k", "row before"], ["Enter", "open the row"], ["x", "select the row"],
  ["r", "replay or retry: what is selected, the row, or all that match"], ["d", "discard, likewise"],
  ["m", "show more rows"], ["/", "to the filter"], ["Esc", "out of the filter or dialog"], ["?", "this help"],
];

export function showKeys(): void {
  openDialog(<Dialog title="Keys" closes="Close">
    <div class="keys">
      <dl>{KEYS.map(([key, words]) => <div key={key}><dt><kbd>{key}</kbd></dt><dd>{words}</dd></div>)}</dl>
      <dl>{Object.entries(GOES).map(([key, [, words]]) => <div key={key}><dt><kbd>g</kbd> <kbd>{key}</kbd></dt><dd>{words}</dd></div>)}</dl>
    </div>
  </Dialog>);
}
