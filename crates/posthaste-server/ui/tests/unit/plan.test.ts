import { deepEqual, equal } from "node:assert/strict";
import { test } from "node:test";
import { type DeadFilter, actOf, outLoud } from "../../src/api/plan.ts";

test("a filter that names nothing says that everything is meant; one that names something does not", () => {
  deepEqual(outLoud<DeadFilter>({}), { all: true });
  deepEqual(outLoud<DeadFilter>({ ids: [] }), { ids: [], all: true });
  deepEqual(outLoud<DeadFilter>({ sink: "out" }), { sink: "out" });
  deepEqual(outLoud<DeadFilter>({ ids: ["1"] }), { ids: ["1"] });
});

test("each kind of a job has the word of its act", () => {
  const words = { "dead.replay": "Replay", "dead.discard": "Discard", "deferred.retry": "Retry", "events.replay": "Replay", "consumer.replay": "Replay", "consumer.discard": "Discard", "consumer.deferred_retry": "Retry" };
  for (const [kind, word] of Object.entries(words)) equal(actOf(kind), word, kind);
});
