// A short word about what was done, with a way to it.

import { signal } from "@preact/signals";
import { Icon } from "./icon.tsx";

interface Note {
  readonly id: number;
  readonly text: string;
  readonly tone: "ok" | "bad" | "quiet";
  readonly link?: { readonly to: string; readonly text: string } | undefined;
}

const notes = signal<readonly Note[]>([]);
const NOTES_MAX = 4;
const SHOWN_MS = 8_000;
let last = 0;

export function toast(text: string, tone: Note["tone"] = "ok", link?: Note["link"]): void {
  last += 1;
  const id = last;
  notes.value = [...notes.value.filter((note) => note.text !== text), { id, text, tone, link }].slice(-NOTES_MAX);
  setTimeout(() => drop(id), tone === "bad" ? SHOWN_MS * 2 : SHOWN_MS);
}

function drop(id: number): void {
  notes.value = notes.value.filter((note) => note.id !== id);
}

export function Toasts() {
  return <div class="toasts" role="status" aria-live="polite">
    {notes.value.map((note) => <div key={note.id} class={`toast toast-${note.tone}`}>
      <Icon name={note.tone === "bad" ? "warn" : note.tone === "ok" ? "ok" : "empty"} />
      <span class="toast-text"><bdi class="said wrap">{note.text}</bdi></span>
      {note.link && <a href={note.link.to} onClick={() => drop(note.id)}>{note.link.text}</a>}
      <button type="button" class="act act-quiet act-small" aria-label="Close this message" onClick={() => drop(note.id)}><Icon name="bad" size={11} /></button>
    </div>)}
  </div>;
}
