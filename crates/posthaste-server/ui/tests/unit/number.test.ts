import { equal } from "node:assert/strict";
import { test } from "node:test";
import { NOTHING, atLeast, axisNumber, axisSpan, bytes, count, millis, number, plural, rate, readRate, span } from "../../src/show/number.ts";

test("what is not known is a dash, and never a zero", () => {
  for (const show of [number, rate, span, millis, bytes]) {
    for (const none of [null, undefined, Number.NaN, Number.POSITIVE_INFINITY]) equal(show(none), NOTHING);
  }
  equal(count(null), NOTHING);
});

test("counts have separators, and an estimate says so", () => {
  equal(number(1_234_567), "1,234,567");
  equal(count({ count: 148_000, exact: false }), "~148,000");
  equal(count({ count: 12, exact: true }), "12");
});

test("what was not counted to its end is at least so many", () => {
  equal(atLeast(100_000, true), "100,000");
  equal(atLeast(100_000, false), "at least 100,000");
  equal(atLeast(0, false), "at least 0");
});

test("a small rate is not nothing", () => {
  equal(rate(0), "0/s");
  equal(rate(0.04), "<0.1/s");
  equal(rate(9.94), "9.9/s");
  equal(rate(620.4), "620/s");
});

test("a length of time in one or two units", () => {
  const told: readonly (readonly [number, string])[] = [
    [0, "0 s"], [0.0001, "1 ms"], [0.04, "40 ms"], [1.25, "1.3 s"], [42, "42 s"], [60, "1m"], [242, "4m 2s"], [3_600, "1h"], [7_500, "2h 5m"], [86_400, "1d"], [200_000, "2d 7h"], [-5, "0 s"],
  ];
  for (const [seconds, text] of told) equal(span(seconds), text, String(seconds));
});

test("no unit is rounded up into a whole one of the next", () => {
  equal(span(59.7), "60 s");
  equal(span(3_599.6), "1h");
  equal(span(86_399.6), "1d");
});

test("axes are short", () => {
  equal(axisSpan(90), "1.5m");
  equal(axisSpan(5_400), "1.5h");
  equal(axisSpan(null), NOTHING);
  equal(axisNumber(12_500), "12.5k");
  equal(axisNumber(2_500_000), "2.5M");
  equal(axisNumber(9_999), "9,999");
});

test("milliseconds and sizes", () => {
  equal(millis(0.2), "<1 ms");
  equal(millis(3.14), "3.1 ms");
  equal(millis(1_500), "1.5 s");
  equal(bytes(1_023), "1023 B");
  equal(bytes(1_536), "1.5 KiB");
  equal(bytes(1_048_576), "1 MiB");
  equal(bytes(5e12), "4.5 TiB");
});

test("a word follows its number", () => {
  equal(plural(1, "letter"), "1 letter");
  equal(plural(0, "letter"), "0 letters");
  equal(plural(2_000, "reply", "replies"), "2,000 replies");
});

test("a rate that is typed: none, a number above zero, or wrong", () => {
  equal(readRate(" "), null);
  equal(readRate("200"), 200);
  equal(readRate(" 0.5 /s "), 0.5);
  for (const wrong of ["0", "-1", "x", "1e3", "1,5", "200/m", "Infinity", "0x10", "/s1"]) equal(readRate(wrong), undefined, wrong);
});
