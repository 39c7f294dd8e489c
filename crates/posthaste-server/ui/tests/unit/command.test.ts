import { equal } from "node:assert/strict";
import { test } from "node:test";
import { actCommand, command, controlCommand, jobCommand } from "../../src/cli/command.ts";

test("flags without a value are left out, and a switch has none", () => {
  equal(command(["dead", "list"], [["sink", "out"], ["topic", null], ["key", undefined], ["code", ""], ["all", true], ["json", false]]),
    "posthaste dead list --sink out --all");
});

test("a replay of a cause, with its rate and its reason", () => {
  const plan = { kind: "dead.replay", filter: { sink: "out", fingerprint: "7f3a" } } as const;
  equal(jobCommand(plan, { reason: "mended in 2.3.1", rate: 200 }, null),
    "posthaste dead replay --sink out --fingerprint 7f3a --rate 200/s --reason 'mended in 2.3.1'");
  equal(jobCommand(plan, { reason: "  " }, "shop"), "posthaste dead replay --sink out --fingerprint 7f3a --reason '…' --outbox shop");
});

test("a discard of selected letters names them", () => {
  equal(jobCommand({ kind: "dead.discard", filter: { ids: ["a1", "b2"] } }, { reason: "x" }, null), "posthaste dead discard a1 b2 --reason x");
  equal(jobCommand({ kind: "dead.discard", filter: { all: true } }, { reason: "x" }, null), "posthaste dead discard --all --reason x");
});

test("a retry says what is waited for as `--why`, because `--reason` is the operator's", () => {
  const filter = { sink: "out", reason: "outage", ids: ["a", "b"] };
  equal(jobCommand({ kind: "deferred.retry", filter }, { reason: "back" }, null), "posthaste deferred retry --sink out --why outage --id a --id b --reason back");
});

test("a consumer's acts name the consumer", () => {
  equal(jobCommand({ kind: "consumer.replay", consumer: "billing", filter: { fingerprint: "9" } }, { reason: "x" }, null),
    "posthaste dead replay --consumer billing --fingerprint 9 --reason x");
  equal(jobCommand({ kind: "consumer.deferred_retry", consumer: "billing", filter: { all: true } }, { reason: "x" }, null),
    "posthaste deferred retry --consumer billing --all --reason x");
});

test("a replay of the log names its sink and numbers", () => {
  equal(jobCommand({ kind: "events.replay", sink: "out", filter: { from_seq: 0, to_seq: 9 } }, { reason: "x" }, null),
    "posthaste events replay --sink out --from-seq 1 --to-seq 9 --reason x");
});

test("pause, resume and rate", () => {
  equal(controlCommand("pause", ["sink", "out"], { reason: "upgrade", forText: "1h" }, null), "posthaste pause --sink out --for 1h --reason upgrade");
  equal(controlCommand("resume", ["consumer", "a b"], { reason: "x" }, "shop"), "posthaste resume --consumer 'a b' --reason x --outbox shop");
  equal(controlCommand("rate", ["sink", "out"], { reason: "x", rate: 200 }, null), "posthaste rate 200 --sink out --reason x");
  equal(controlCommand("rate", ["sink", "out"], { reason: "x", rate: null }, null), "posthaste rate off --sink out --reason x");
});

test("what is typed as a reason cannot become another command", () => {
  equal(actCommand(["jobs", "cancel", 3], [], { reason: "x'; rm -rf ~; '" }, null), "posthaste jobs cancel 3 --reason 'x'\\''; rm -rf ~; '\\'''");
});

test("a value that begins with a dash is not taken for a flag", () => {
  equal(jobCommand({ kind: "dead.replay", filter: { key: "-1", topic: "--all" } }, { reason: "- why -" }, null),
    "posthaste dead replay --topic=--all --key=-1 --reason='- why -'");
});
