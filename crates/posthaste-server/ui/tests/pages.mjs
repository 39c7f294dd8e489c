// Every page, with whatever the outbox has: it obeys no text, asks nobody else, needs no horizontal scroll bar,
// and axe finds nothing. With --all each in three widths and two themes, with a picture; without, each once.
//
//   node pages.mjs ADDRESS TOKEN OUTDIR --outbox NAME [--all]
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { ask, axe, check, enter, filled, fits, goTo, isClean, live, saysNoNonsense, tab, withBrowser } from "./browser.mjs";

const [address, token, out, , outbox] = process.argv.slice(2);
const isAll = process.argv.includes("--all");
const WIDTHS = [360, 800, 1440];
const THEMES = ["light", "dark"];

/** Each page: its address, and what is to be done there before it is looked at. */
async function places() {
  const at = (page, of = "", filters = {}) => {
    const query = new URLSearchParams(filters).toString();
    return `#/${[outbox, page, ...(of === "" ? [] : [of])].map(encodeURIComponent).join("/")}${query === "" ? "" : `?${query}`}`;
  };
  const of = `outboxes/${encodeURIComponent(outbox)}`;
  const list = async (path, name) => (await ask(address, token, path))[name];
  const dead = await list(`${of}/dead?limit=1`, "dead");
  const causes = await list(`${of}/dead/causes`, "causes");
  const jobs = await list(`${of}/jobs?limit=1`, "jobs").catch(() => []);
  const consumers = await list("consumers", "consumers").catch(() => []);
  const gateway = await ask(address, token, "gateway");
  const press = (name) => async (page) => { await page.locator("main").getByRole("button", { name }).first().click(); };
  const dialog = (name) => async (page) => {
    await press(name)(page);
    await page.locator("dialog[open]").waitFor();
    await page.locator("dialog[open] .waiting").waitFor({ state: "detached" });
  };
  const all = [
    ["overview", at("overview")],
    ["overview-numbers", at("overview"), async (page) => { for (const one of await page.locator(".chart-numbers summary").all()) await one.click(); }],
    ["overview-pause", at("overview"), dialog(/^Pause sink|^Resume sink/)],
    ["overview-rate", at("overview"), dialog(/^Rate of sink/)],
    // Where a gateway is, it is opened.
    ...(gateway?.outbox === outbox ? [["overview-gateway", at("overview"), async (page) => {
      const card = page.locator("main [data-gateway]");
      await card.locator("summary").click();
      for (const { tenant } of gateway.tenants) await card.locator("[data-row]").filter({ hasText: tenant }).waitFor();
    }]] : []),
    ["dead", at("dead")],
    ["deferred", at("deferred")],
    ["events", at("events")],
    ["events-tail", at("events", "", { tail: "yes" })],
    ["lanes", at("lanes")],
    ["lanes-rewind", at("lanes"), dialog(/^Rewind sink/)],
    ["lanes-change", at("lanes"), dialog(/^Change lanes/)],
    ["consumers", at("consumers")],
    ["jobs", at("jobs")],
    ["audit", at("audit")],
    ["settings", at("settings"), async (page) => {
      await press("Examine")(page);
      await page.getByText(/^Examined/).waitFor();
      await page.locator(".config summary").click();
    }],
    ["settings-tune", at("settings"), dialog(/^Tune/)],
    ["nothing", at("no-such-page")],
    ["stranger", "#/nobody/dead"],
    ["keys", at("overview"), async (page) => { await page.keyboard.press("?"); await page.locator("dialog[open]").waitFor(); }],
  ];
  if (dead.length > 0) {
    const [letter] = dead;
    all.push(
      ["dead-cause", at("dead", "", { sink: letter.sink, ...(causes[0]?.fingerprint ? { fingerprint: causes[0].fingerprint } : { code: letter.error_code }) })],
      ["dead-replay", at("dead"), dialog(/^Replay all/)],
      ["dead-discard", at("dead"), dialog(/^Discard all/)],
      ["event", at("event", letter.id)],
      ["event-hex", at("event", letter.id), async (page) => { if (await page.getByRole("button", { name: "hex" }).count() > 0) await press("hex")(page); }],
    );
  }
  if (jobs.length > 0) all.push(["job", at("jobs", String(jobs[0].job))]);
  if (consumers.length > 0) {
    const name = consumers[0].consumer;
    all.push(["consumer", at("consumers", name)], ["consumer-dead", at("consumers", name, { view: "dead" })], ["consumer-deferred", at("consumers", name, { view: "deferred" })]);
    const [letter] = await list(`consumers/${encodeURIComponent(name)}/dead?limit=1`, "dead");
    if (letter) all.push(["consumer-letter", at("consumers", name, { view: "dead", letter: letter.letter })]);
  }
  return all;
}

/** What was found. All pages are looked at, so that one run tells everything. */
const wrong = [];
async function note(look) {
  try {
    await look();
  } catch (error) {
    wrong.push(error.message);
  }
}

async function lookAt(page, name, hash, prepare, { widths, theme, withAxe }) {
  const where = `${name} in ${theme}`;
  await page.setViewportSize({ width: widths[0], height: 900 });
  await page.emulateMedia({ colorScheme: theme });
  // A page that was prepared is left as it was only by a new load; the session is the tab's.
  await page.goto("about:blank");
  await page.goto(`${address}${hash}`);
  if (hash.includes("/nobody/") || hash.includes("no-such-page")) await page.locator("main .empty").waitFor();
  else await filled(page, hash);
  // An outbox that is none has no stream.
  if (!hash.includes("/nobody/")) await live(page);
  await prepare?.(page);
  for (const width of widths) {
    await page.setViewportSize({ width, height: 900 });
    await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
    await note(() => fits(page, `${where} at ${width}`));
    if (withAxe(width)) await note(() => axe(page, `${where} at ${width}`));
    if (isAll) await page.screenshot({ path: join(out, `${name}-${width}-${theme}.png`), fullPage: true, animations: "disabled" });
  }
  await note(() => saysNoNonsense(page, where));
}

await withBrowser(async (browser) => {
  mkdirSync(out, { recursive: true });
  const { page, faults } = await tab(browser, address);
  // The door first: it is a page, too.
  for (const theme of THEMES) {
    await page.emulateMedia({ colorScheme: theme });
    await page.goto(address);
    await page.getByLabel("Token").waitFor();
    for (const width of WIDTHS) {
      await page.setViewportSize({ width, height: 900 });
      await note(() => fits(page, `login in ${theme} at ${width}`));
      if (isAll) await page.screenshot({ path: join(out, `login-${width}-${theme}.png`) });
    }
    await note(() => axe(page, `login in ${theme}`));
  }
  await enter(page, address, token, `#/${encodeURIComponent(outbox)}`);
  const all = await places();
  let turn = 0;
  for (const [name, hash, prepare] of all) {
    turn += 1;
    const [theme, looked] = turn % 2 === 0 ? ["light", 1440] : ["dark", 360];
    const looks = isAll
      ? THEMES.map((each) => ({ widths: WIDTHS, theme: each, withAxe: (width) => width !== 800 }))
      : [{ widths: [1440, 360], theme, withAxe: (width) => width === looked }];
    for (const look of looks) await lookAt(page, name, hash, prepare, look).catch((error) => wrong.push(`${name}: ${error.message}`));
    await note(() => isClean(faults.splice(0), name));
  }
  check(wrong.length === 0, wrong.join("\n\n"));
  console.log(`${all.length + 1} pages${isAll ? `, pictures in ${out}` : ""}`);
});
