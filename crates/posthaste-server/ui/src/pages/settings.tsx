// Settings: what can be tuned, what doctor finds, and the configuration in force.

import { useState } from "preact/hooks";
import { me } from "../api/enter.ts";
import { askForOrder } from "../acts/order-dialog.tsx";
import { outboxFlag, whyNoAct, whyNot } from "../acts/rights.ts";
import { askForTuning } from "../acts/tune-dialog.tsx";
import { type Problem, ask, path, problemIn } from "../api/request.ts";
import type { Examined, ShownSetting, ShownTuning } from "../api/shapes.ts";
import { actCommand } from "../cli/command.ts";
import { lacks } from "../live/picture.ts";
import { Act } from "../parts/act.tsx";
import { Chip, type Tone } from "../parts/chip.tsx";
import { useLook } from "../parts/look.ts";
import { LackNote, ProblemNote } from "../parts/problem-note.tsx";
import { Rows, Waiting } from "../parts/rows.tsx";
import { LongText, Said } from "../parts/said.tsx";
import { When } from "../parts/when.tsx";
import { here } from "../place/here.ts";
import { number } from "../show/number.ts";
import { PageHead } from "./page-head.tsx";

export function SettingsPage() {
  const { outbox } = here.value;
  return <>
    <PageHead title="Settings" about={<>Server {me.value?.version}. What is tuned here lies over the file's values for a while, on all relays.</>} />
    <Tuning outbox={outbox} />
    <Doctor outbox={outbox} />
    <Config />
  </>;
}

function Tuning({ outbox }: { outbox: string }) {
  const lack = lacks.value.get("tuning");
  const look = useLook<ShownTuning>(lack === undefined ? path`outboxes/${outbox}/tuning` : null);
  const why = whyNoAct("operate", "tuning");
  const clear = (settings: string[]): void => askForOrder({
    title: settings.length === 0 ? "Go back to the file's settings" : `Go back to the file's ${settings.join(", ")}`, means: "The file's values are back within a heartbeat.", button: "Go back",
    where: path`outboxes/${outbox}/tuning`, method: "DELETE", body: settings.length === 0 ? { all: true } : { settings },
    command: (reason) => actCommand(["tune", "clear", ...settings], [], { reason }, outboxFlag(outbox)), done: "The file's values are back.", onDone: look.again,
  });
  const isTuned = look.data?.settings.some((setting) => setting.tuned) ?? false;
  return <section class="panel"><div class="panel-head"><h2>Tuning</h2><span class="page-acts">
    {look.data && <Act small why={why} onPress={() => askForTuning(outbox, look.data?.settings ?? [], look.again)}>Tune…</Act>}
    {isTuned && <Act small why={why} onPress={() => clear([])}>Clear all…</Act>}</span></div>
    {lack !== undefined && <LackNote why={lack} />}
    {look.problem && <ProblemNote problem={look.problem} again={look.again} />}
    {look.data === null ? look.isAsking && lack === undefined && <Waiting /> : <Rows caption="Settings of relays that can be tuned" rows={look.data.settings} keyOf={(setting) => setting.setting} columns={[
      { head: "Setting", as: "fit", cell: (setting) => <span class="mono">{setting.setting}</span> },
      { head: "File", as: "num", cell: (setting) => number(setting.file) },
      { head: "In force", as: "num", cell: (setting) => <b>{number(setting.in_force)}</b> },
      { head: "By", as: "main", cell: (setting) => <TunedBy setting={setting} /> },
      { head: "Acts", as: "acts", cell: (setting) => setting.tuned ? <Act small kind="quiet" why={why} onPress={() => clear([setting.setting])} label={`Clear ${setting.setting}`}>Clear…</Act> : null },
    ]} />}
    {(look.data?.passed_over ?? []).map((why) => <p key={why} class="quiet"><LongText text={why} /></p>)}
  </section>;
}

function TunedBy({ setting }: { setting: ShownSetting }) {
  if (!setting.tuned) return <span class="quiet">the file</span>;
  const by = setting.set_by;
  return <><Chip tone="busy" icon="settings">tuned</Chip> {by != null && <><Said text={by.actor} most={60} />: “<Said text={by.reason} most={160} />”{by.until != null && <>, until <When at={by.until} /></>}</>}</>;
}

const LEVELS: Readonly<Record<string, Tone>> = { ok: "ok", warn: "warn", fail: "bad" };

function Doctor({ outbox }: { outbox: string }) {
  const [found, keep] = useState<Examined | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [isAsking, setAsking] = useState(false);
  const examine = (): void => {
    setAsking(true);
    setProblem(null);
    ask<Examined>(path`outboxes/${outbox}/doctor`, { method: "POST" }).then(keep, (error: unknown) => setProblem(problemIn(error))).finally(() => setAsking(false));
  };
  return <section class="panel"><div class="panel-head"><h2>Doctor</h2><Act small why={whyNot("operate")} onPress={examine} act="doctor">{isAsking ? "Examining…" : "Examine"}</Act></div>
    {problem && <ProblemNote problem={problem} />}
    {found === null ? <p class="empty">It checks everything that the outbox rests on in its database.</p> : <>
      <p class="quiet">Examined <When at={found.at} />.</p>
      <Rows caption="What doctor found, the worst first" rows={found.findings} keyOf={(finding) => finding.check + finding.text} columns={[
        { head: "Level", as: "fit", cell: (finding) => <Chip tone={LEVELS[finding.level] ?? "quiet"}>{finding.level}</Chip> },
        { head: "Check", as: "wide", cell: (finding) => <Said text={finding.check} most={120} /> },
        { head: "Found", as: "main", cell: (finding) => <LongText text={finding.text} /> },
      ]} /></>}
  </section>;
}

function Config() {
  const isForAll = me.value?.consumers.includes("*") ?? false;
  const why = whyNot("admin") ?? (isForAll ? null : "The configuration is about all outboxes and consumers, and your token is for some.");
  const look = useLook<unknown>(why === null ? "config" : null);
  return <section class="panel"><h2>Configuration in force</h2>
    {why !== null ? <p class="empty">{why}</p> : look.problem ? <ProblemNote problem={look.problem} again={look.again} /> : look.data === null ? <Waiting />
      : <details class="config"><summary>Show it, secrets masked</summary><LongText text={JSON.stringify(look.data, null, 2)} most={20_000} block /></details>}
  </section>;
}
