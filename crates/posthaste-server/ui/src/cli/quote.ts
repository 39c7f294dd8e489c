// A word as a shell takes it. Pure.

/** Bare where nothing in it means anything to a shell, else in single quotes. */
export function quote(word: string): string {
  if (word !== "" && /^[A-Za-z0-9_@%+=:,./-]+$/.test(word)) return word;
  // What a terminal would not show is written out: whoever pastes the command sees all of it.
  // eslint-disable-next-line no-control-regex
  if (/[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/.test(word)) return dollar(word);
  return `'${word.replaceAll("'", "'\\''")}'`;
}

/** The form of bash and zsh that takes escapes: `$'…'`. */
function dollar(word: string): string {
  let text = "";
  for (const one of word) {
    const code = one.codePointAt(0) ?? 0;
    if (one === "'" || one === "\\") text += `\\${one}`;
    else if (one === "\n") text += "\\n";
    else if (one === "\t") text += "\\t";
    else if (code < 0x20 || code === 0x7f) text += `\\x${code.toString(16).padStart(2, "0")}`;
    else if (code >= 0x80 && !/[\p{L}\p{N}\p{P}\p{S}]/u.test(one)) text += `\\u${code.toString(16).padStart(4, "0")}`;
    else text += one;
  }
  return `$'${text}'`;
}
