// Every dialog that acts is sent once, and what it did is asked of the API. The command that it shows is told to the
// test, which runs it. What others walk through is left out: pause and resume of a sink, jobs, replay and discard of an
// outbox's dead letters.
//
//   node dialogs.mjs ADDRESS TOKEN OUTBOX     says `mend`, and then wants a line when that is done
import { createInterface } from "node:readline/promises";
import { ask, check, enter, goTo, isClean, live, tab, tellsCommand, until, withBrowser } from "./browser.mjs";

const [address, token, outbox] = process.argv.slice(2);
const of = `outboxes/${outbox}`;
const lines = createInterface({ input: process.stdin });
const answers = lines[Symbol.asyncIterator]();

await withBrowser(async (browser) => {
  const { page, faults } = await tab(browser, address);
  const dialog = page.locator("dialog[open]");
  const main = page.locator("main");
  const to = (place) => goTo(page, `#/${outbox}/${place}`);
  const press = (name) => main.getByRole("button", { name }).first().click();
  const count = (many) => dialog.locator("[data-count=goes]").filter({ hasText: new RegExp(`^${many}$`) }).waitFor();
  let sent = 0;
  /** Fills what is open, tells its command, and sends it. */
  const send = async (name, fill = async () => undefined) => {
    sent += 1;
    const reason = `reason ${sent}: it's time`;
    await dialog.getByLabel("Reason").fill(reason);
    await fill();
    // A quote in a reason is written as a shell wants it.
    await tellsCommand(page, `reason ${sent}:`);
    await dialog.getByRole("button", { name, exact: true }).click();
    await dialog.waitFor({ state: "detached" });
    return reason;
  };
  const sinks = async () => (await ask(address, token, of)).sinks;
  const sink = async (name) => (await sinks()).find((one) => one.sink === name);
  const consumer = async () => (await ask(address, token, "consumers")).consumers[0];
  const jobOf = (reason) => until(`the job for ${reason}`, async () => {
    const { jobs } = await ask(address, token, `${of}/jobs`);
    return jobs.find((job) => job.reason === reason && job.state === "done");
  });

  async function rates() {
    await to("overview");
    await live(page);
    await press("Rate of sink broker");
    await send("Limit to 40/s", async () => {
      await dialog.getByLabel("Rate, a second").fill("40");
      await dialog.getByLabel("How long").selectOption("1h");
    });
    await until("a rate", async () => (await sink("broker")).rate_limit_per_s === 40);
    await main.locator("[data-sink=broker]").getByText("At most 40/s").waitFor();
    await press("Rate of sink broker");
    await send("Lift the limit", () => dialog.getByLabel("Rate, a second").fill(""));
    await until("no rate", async () => (await sink("broker")).rate_limit_per_s == null);
  }

  async function tuning() {
    const tuned = async () => (await ask(address, token, `${of}/tuning`)).settings.filter((setting) => setting.tuned);
    await to("settings");
    const [one, two] = (await ask(address, token, `${of}/tuning`)).settings;
    const tune = async (...settings) => {
      await press("Tune…");
      await send("Tune", async () => {
        for (const { setting, file } of settings) await dialog.getByLabel(setting, { exact: true }).fill(String(file + 1));
      });
    };
    await tune(one, two);
    await until("two settings", async () => (await tuned()).length === 2);
    check((await tuned()).every((setting) => setting.in_force === setting.file + 1), JSON.stringify(await tuned()));
    await press(`Clear ${one.setting}`);
    await send("Go back");
    await until("one setting", async () => (await tuned()).map(({ setting }) => setting).join() === two.setting);
    await press("Clear all…");
    await send("Go back");
    await until("no setting", async () => (await tuned()).length === 0);
  }

  async function lanes() {
    await to("lanes");
    await press("Change lanes…");
    await dialog.getByText(/already/).waitFor();
    await send("Change to 3", async () => {
      await dialog.getByLabel("Lanes of each sink").fill("3");
      await dialog.getByText("each sink would have 3 lanes").waitFor();
    });
    await until("three lanes", async () => (await sinks()).every((one) => one.lanes.length === 3 && one.lanes.every((lane) => lane.owner != null)));
  }

  async function consumers() {
    await to("consumers/billing");
    await press("Pause…");
    await send("Pause", () => dialog.getByLabel("How long").selectOption("8h"));
    await until("a pause", async () => (await consumer()).paused);
    await press("Resume…");
    await send("Resume");
    await until("a resume", async () => !(await consumer()).paused);
    await press("Rate…");
    await send("Limit to 0.5/s", () => dialog.getByLabel("Rate, a second").fill("0.5"));
    await until("a rate", async () => (await consumer()).rate_limit_per_s === 0.5);
    await press("At most 0.5/s…");
    await send("Lift the limit", () => dialog.getByLabel("Rate, a second").fill(""));
    await until("no rate", async () => (await consumer()).rate_limit_per_s == null);
  }

  async function letters() {
    const dead = async () => (await ask(address, token, "consumers/billing/dead")).dead;
    await to("consumers/billing?view=dead");
    // Nothing was mended: the handler rejects them again.
    await press(/^Replay 2 letters/);
    await count(2);
    await jobOf(await send("Replay 2"));
    await until("their second death", async () => (await dead()).filter(({ replays }) => replays === 1).length === 2);
    await to("jobs");
    await to("consumers/billing?view=dead");
    await main.locator("[data-row]").filter({ hasText: "orders/" }).last().getByRole("link").click();
    await main.getByRole("heading", { name: /^Letter of/ }).waitFor();
    await press("Discard…");
    await count(1);
    await jobOf(await send("Discard 1"));
    await until("one letter", async () => (await dead()).length === 1);
    console.log("mend");
    await answers.next();
    await to("jobs");
    await to("consumers/billing?view=dead");
    await press("Replay all…");
    await count(1);
    await jobOf(await send("Replay 1"));
    await until("no letter", async () => (await consumer()).dead.count === 0);
    await to("consumers/billing?view=deferred");
    await press("Retry all now…");
    await count(1);
    await jobOf(await send("Retry 1"));
    await until("nothing deferred", async () => (await consumer()).deferred.count === 0);
  }

  async function log() {
    await to("deferred");
    await press("Retry all now…");
    await count(1);
    await jobOf(await send("Retry 1"));
    await until("nothing deferred", async () => (await sink("hook")).deferred.count === 0);
    await to("events?topic=mail");
    await press("Replay to…");
    await dialog.getByLabel("Sink").selectOption("hook");
    await dialog.getByRole("button", { name: "Go on…" }).click();
    await count(1);
    const job = await jobOf(await send("Replay 1", () => dialog.getByLabel("Rate, a second").fill("5")));
    check(job.kind === "events.replay" && job.done === 1, JSON.stringify(job));
  }

  async function rewinding() {
    await to("lanes");
    await press("Rewind sink hook");
    const would = dialog.locator(".dry-run").filter({ hasText: /sink hook would read again.* event.* would be sent again/ });
    await dialog.getByLabel("Time").fill("2h");
    await would.waitFor();
    await dialog.getByLabel("To").selectOption("seq");
    await dialog.getByLabel("Number").fill("99");
    await dialog.locator(".dry-run").filter({ hasText: "99 lies in front of it" }).waitFor();
    await dialog.getByLabel("Number").fill("1");
    await would.waitFor();
    await tellsCommand(page, "seq:1");
    // What it sends comes to a receiver that the test has.
    await send("Rewind", async () => {
      await dialog.getByLabel("To").selectOption("earliest");
      await would.waitFor();
    });
  }

  await enter(page, address, token, `#/${outbox}/overview`);
  for (const walk of [rates, tuning, lanes, consumers, letters, log, rewinding]) {
    await walk().catch(async (error) => {
      throw new Error(`${walk.name}: ${error.stack}\n${page.url()}\n${await page.locator("body").innerText().catch(() => "")}`);
    });
    isClean(faults, walk.name);
  }
  lines.close();
});
