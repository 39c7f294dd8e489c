import { equal, ok } from "node:assert/strict";
import { test } from "node:test";
import { quote } from "../../src/cli/quote.ts";
import { HOSTILE } from "./hostile.ts";

/** What bash makes of one word: bare, in single quotes, or in `$'…'`. Anything else is no word of ours. */
function bash(text: string): string {
  if (/^[A-Za-z0-9_@%+=:,./-]+$/.test(text)) return text;
  if (text.startsWith("$'")) {
    ok(text.endsWith("'"), text);
    return text.slice(2, -1).replace(/\\(x[0-9a-f]{2}|u[0-9a-f]{4}|.)/gs, (_, escape: string) => {
      if (/^[xu][0-9a-f]+$/.test(escape)) return String.fromCharCode(Number.parseInt(escape.slice(1), 16));
      return { n: "\n", t: "\t" }[escape] ?? escape;
    });
  }
  const parts = text.split("'\\''");
  ok(parts[0]?.startsWith("'") && parts[parts.length - 1]?.endsWith("'"), text);
  const inner = text.slice(1, -1).split("'\\''");
  ok(inner.every((part) => !part.includes("'")), text);
  return inner.join("'");
}

test("a shell reads back each word as it was", () => {
  for (const word of ["", "plain", "orders.*", "a b", "ü", ...HOSTILE]) equal(bash(quote(word)), word, JSON.stringify(word));
});

test("a word that a shell takes as it stands is bare", () => {
  for (const word of ["http.status_422", "200/s", "2026-11-15T08:00:00Z", "a@b", "--"]) equal(quote(word), word);
  for (const word of ["*", "a b", "~", "#x", "$HOME", "`id`", "", "a;b", "(x)", "!1"]) ok(quote(word) !== word, word);
});

test("what a terminal would not show, or would obey, is written out", () => {
  for (const word of HOSTILE) {
    // eslint-disable-next-line no-control-regex
    ok(!/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]/.test(quote(word)), JSON.stringify(word));
  }
});
