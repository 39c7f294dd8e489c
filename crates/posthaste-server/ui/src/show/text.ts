// Texts of others: keys, topics, errors, payloads. Whoever may append an event wrote them. Pure.

// Control characters, and marks that turn the direction of what stands beside them. Line ends and tabs stay.
// eslint-disable-next-line no-control-regex
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;

/** A text whose unseen characters are written out, as the command line shows them. */
export function visible(text: string): string {
  return text.replace(UNSEEN, (one) => {
    if (one === "\r") return "\\r";
    const code = one.charCodeAt(0);
    return code < 0x100 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u{${code.toString(16)}}`;
  });
}

/** The beginning of a text: no character is cut in two. */
export function beginning(text: string, most: number): string {
  if (text.length <= most) return text;
  const last = text.charCodeAt(most - 1);
  return text.slice(0, last >= 0xd800 && last < 0xdc00 ? most - 1 : most);
}

/** Bytes as people look at them: the place, sixteen in hex, and what of them is text. */
export function hexLines(bytes: Uint8Array, most: number): string {
  const lines: string[] = [];
  const end = Math.min(bytes.length, most);
  for (let at = 0; at < end; at += 16) {
    const row = bytes.subarray(at, Math.min(at + 16, end));
    const hex = Array.from(row, (byte) => byte.toString(16).padStart(2, "0"));
    const left = hex.slice(0, 8).join(" ").padEnd(23);
    const right = hex.slice(8).join(" ").padEnd(23);
    const text = Array.from(row, (byte) => (byte > 0x1f && byte < 0x7f ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${left}  ${right}  ${text}`);
  }
  return lines.join("\n");
}

export function fromBase16(text: string): Uint8Array<ArrayBuffer> {
  return Uint8Array.from({ length: text.length >> 1 }, (_, at) => Number.parseInt(text.slice(2 * at, 2 * at + 2), 16));
}

/** JSON with a line for each member, or `null` if it is none. Numbers keep their digits: nothing is rounded. */
export function pretty(text: string): string | null {
  try {
    JSON.parse(text);
  } catch {
    return null;
  }
  let out = "";
  let depth = 0;
  const line = (): string => `\n${"  ".repeat(depth)}`;
  const tokens = text.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g) ?? [];
  tokens.forEach((token, index) => {
    const next = tokens[index + 1];
    if (token === "{" || token === "[") {
      depth += 1;
      out += next === "}" || next === "]" ? token : token + line();
    } else if (token === "}" || token === "]") {
      const before = tokens[index - 1];
      depth -= 1;
      out += before === "{" || before === "[" ? token : line() + token;
    } else if (token === ",") out += token + line();
    else out += token === ":" ? ": " : token;
  });
  return out;
}

const INSTANT = /(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z)/;

/** A sentence in parts: every second one is a time, which is shown as all times are. */
export function withTimes(sentence: string): string[] {
  return sentence.split(INSTANT);
}

/** What a table has under a name that somebody else gave: never what all tables have, as `constructor`. */
export function own<T>(table: Readonly<Record<string, T>>, name: string): T | undefined {
  return Object.hasOwn(table, name) ? table[name] : undefined;
}
