import { deepEqual, equal } from "node:assert/strict";
import { test } from "node:test";
import { causeFilter, whyTooWide } from "../../src/pages/deferred-cause.ts";
import { ofOneSink, pruned } from "../../src/parts/picked.ts";

const letter = (id: string, sink: string) => ({ id, sink });
const picked = (...all: readonly { id: string; sink: string }[]) => new Map(all.map((one) => [`${one.sink}/${one.id}`, one]));

test("a selected row that slid off the page stays selected, and one that is gone does not", () => {
  const all = picked(letter("a", "one"), letter("b", "one"));
  deepEqual([...pruned(all, new Set(["one/c"]), true).keys()], ["one/a", "one/b"]);
  deepEqual([...pruned(all, new Set(["one/b", "one/c"]), false).keys()], ["one/b"]);
  equal(pruned(all, new Set(["one/a", "one/b"]), false), all);
});

test("a selection is of one sink, or it is none that a job could have", () => {
  deepEqual(ofOneSink(picked(letter("a", "one"), letter("b", "one"))), { ids: ["a", "b"], sink: "one" });
  equal(ofOneSink(picked(letter("a", "one"), letter("b", "two"))), null);
  equal(ofOneSink(picked()), null);
});

test("a cause without a code or a destination is not made wider than it is", () => {
  const of = (destination: string, code: string | null) => ({ sink: "s", reason: "retry", destination, error_code: code });
  const all = [of("a", null), of("a", "x"), of("b", "x"), of("c", null), { ...of("c", null), sink: "t" }];
  deepEqual(all.map((one) => whyTooWide(one, all) !== null), [true, false, false, false, false]);
  equal(whyTooWide(of("", "x"), [...all, of("", "x")]) !== null, true);
  deepEqual(causeFilter({ reason: "retry" }), { reason: "retry" });
});
