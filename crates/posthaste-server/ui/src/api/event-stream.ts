// Server-sent events out of pieces of text. Pure: what reads the network hands them over.

export interface StreamEvent {
  readonly event: string;
  readonly data: string;
}

/** An event that is larger than this is none of ours. */
const BUFFER_MAX = 16 << 20;

export class EventStreamParser {
  #rest = "";
  #began = false;
  #event = "";
  #data: string[] = [];

  /** The events that end within this piece. Comments are heartbeats and tell nothing. */
  feed(piece: string): StreamEvent[] {
    const found: StreamEvent[] = [];
    let text = this.#rest + piece;
    if (!this.#began && text !== "") {
      this.#began = true;
      if (text.startsWith("\ufeff")) text = text.slice(1);
    }
    const ends = /\r\n|\n|\r/g;
    let from = 0;
    for (let end = ends.exec(text); end !== null; end = ends.exec(text)) {
      // The other half of a line's end may be in the next piece.
      if (end[0] === "\r" && end.index + 1 === text.length) break;
      this.#line(text.slice(from, end.index), found);
      from = ends.lastIndex;
    }
    this.#rest = text.slice(from);
    if (this.#rest.length > BUFFER_MAX) throw new Error("an event of the stream is too large");
    return found;
  }

  #line(line: string, found: StreamEvent[]): void {
    if (line === "") {
      if (this.#data.length > 0) found.push({ event: this.#event || "message", data: this.#data.join("\n") });
      this.#event = "";
      this.#data = [];
      return;
    }
    if (line.startsWith(":")) return;
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
    if (name === "event") this.#event = value;
    else if (name === "data") this.#data.push(value);
  }
}
