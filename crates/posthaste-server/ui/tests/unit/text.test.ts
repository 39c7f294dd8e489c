import { deepEqual, equal, ok } from "node:assert/strict";
import { test } from "node:test";
import { beginning, fromBase16, hexLines, own, pretty, visible, withTimes } from "../../src/show/text.ts";
import { HOSTILE } from "./hostile.ts";

test("what is not seen is written out, and what is seen stays as it is", () => {
  equal(visible("a\u001b[2Jb"), "a\\x1b[2Jb");
  equal(visible("\u202egnp.exe"), "\\u{202e}gnp.exe");
  equal(visible("a\r\nb\tc"), "a\\r\nb\tc");
  equal(visible("<b>ü 漢字 🎉</b>"), "<b>ü 漢字 🎉</b>");
});

test("nothing that turns a direction or steers a terminal is left in any text", () => {
  // eslint-disable-next-line no-control-regex
  for (const text of HOSTILE) ok(!/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]/.test(visible(text)), JSON.stringify(text));
});

test("a beginning cuts no character in two", () => {
  equal(beginning("abc", 3), "abc");
  equal(beginning("abcd", 3), "abc");
  equal(beginning("ab🎉", 3), "ab");
  equal(beginning("ab🎉c", 4), "ab🎉");
});

test("JSON has a line for each member, and its numbers keep all their digits", () => {
  equal(pretty('{"a":12345678901234567890.10,"b":[],"c":{"d":[1,"x, {y}: \\"z\\""]}}'),
    '{\n  "a": 12345678901234567890.10,\n  "b": [],\n  "c": {\n    "d": [\n      1,\n      "x, {y}: \\"z\\""\n    ]\n  }\n}');
  equal(pretty("[{}]"), "[\n  {}\n]");
  equal(pretty('"a"'), '"a"');
  equal(pretty("12"), "12");
});

test("what is no JSON has no other form", () => {
  for (const text of ["", "{", "{'a':1}", "no <b>JSON</b>", "NaN", "[1,]"]) equal(pretty(text), null, text);
});

test("JSON that is written out says the same", () => {
  const value = { a: HOSTILE, b: { c: [[], {}, null, true, -1.5e-7, { d: "}" }] } };
  deepEqual(JSON.parse(pretty(JSON.stringify(value)) ?? ""), value);
});

test("deep and large JSON is no trouble", () => {
  const deep = `${"[".repeat(2_000)}${"]".repeat(2_000)}`;
  equal((pretty(deep) ?? "").split("\n").length, 3_999);
});

test("bytes in lines of sixteen, with what of them is text", () => {
  equal(hexLines(new Uint8Array([0, 255, 65, 66]), 100), "00000000  00 ff 41 42              " + " ".repeat(25).slice(1) + " ..AB");
  const lines = hexLines(new Uint8Array(40), 20).split("\n");
  deepEqual(lines.map((line) => line.slice(0, 8)), ["00000000", "00000010"]);
  equal(hexLines(new Uint8Array(), 100), "");
});

test("bytes that came in hex are the same bytes", () => {
  deepEqual(fromBase16("00ff4142"), new Uint8Array([0, 255, 65, 66]));
  equal(fromBase16("").length, 0);
});

test("times in a sentence are found, whatever is around them", () => {
  deepEqual(withTimes("away since 2026-11-15T08:00:00.1Z: x"), ["away since ", "2026-11-15T08:00:00.1Z", ": x"]);
  deepEqual(withTimes("nothing"), ["nothing"]);
});

test("a table has what it was given, and not what all tables have", () => {
  for (const name of ["constructor", "__proto__", "toString", "hasOwnProperty"]) equal(own({ a: 1 }, name), undefined);
  equal(own({ a: 1 }, "a"), 1);
});
