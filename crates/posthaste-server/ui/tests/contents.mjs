// Each thing that somebody else wrote, on the page of its own: every dead letter's event, every cause, every letter of
// a consumer; as text, in hex to the last byte, and as a file. And a filter of such a text, in the command of a dialog.
//
//   node contents.mjs ADDRESS TOKEN OUTBOX
import { readFile } from "node:fs/promises";
import { ask, check, enter, fits, goTo, isClean, live, saysNoNonsense, tab, tellsCommand, withBrowser } from "./browser.mjs";

const [address, token, outbox] = process.argv.slice(2);
const of = `outboxes/${encodeURIComponent(outbox)}`;
const NARROW = 360;
const WIDE = 1440;
const at = (page, filters = {}) => `#/${encodeURIComponent(outbox)}/${page}?${new URLSearchParams(filters)}`;

/** Goes to a page that may have the name of the one before, by way of another: what is there then is its own. */
async function openAnew(page, hash, what) {
  await goTo(page, at("jobs"));
  await goTo(page, hash);
  await page.locator(what).first().waitFor();
}

const moreIn = (panel) => panel.locator("button.link").filter({ hasText: "show more" });
const panelOf = (page, title) => page.locator("main .panel").filter({ has: page.getByRole("heading", { name: title, exact: true }) });

/** All of a payload: what the page shows in hex, and what it gives as a file, are its bytes. */
async function isWhole(page, where, bytes) {
  const panel = panelOf(page, "Payload");
  const [file] = await Promise.all([page.waitForEvent("download"), panel.getByRole("button", { name: "Download" }).click()]);
  check(bytes.equals(await readFile(await file.path())), `the file of ${where} is not its payload`);
  await panel.getByRole("button", { name: "hex" }).click();
  await panel.locator("pre.hex").waitFor();
  while (await moreIn(panel).count() > 0) await moreIn(panel).click();
  const shown = await panel.locator("pre.hex").textContent();
  const pairs = shown === "" ? [] : shown.split("\n").map((line) => line.slice(10, 58));
  check(bytes.equals(Buffer.from(pairs.join("").replace(/\s+/g, ""), "hex")), `${where} in hex is not its payload`);
}

/** Looks at a page that has a payload: as it opens, and with all of it shown. */
async function looksAtContents(page, where, bytes, turn) {
  const widths = turn % 2 === 0 ? [NARROW, WIDE] : [WIDE, NARROW];
  await page.setViewportSize({ width: widths[0], height: 900 });
  await fits(page, where);
  // Texts that were cut: a press shows more of each.
  await moreIn(page.locator("main")).evaluateAll((all) => all.forEach((one) => one.click()));
  await fits(page, `${where}, with more of it`);
  await saysNoNonsense(page, where);
  await isWhole(page, where, bytes);
  for (const width of widths) {
    await page.setViewportSize({ width, height: 900 });
    await fits(page, `${where} in hex at ${width}`);
  }
}

async function payloadOf(seq) {
  const answer = await fetch(new URL(`api/v1/${of}/events/${seq}/payload`, address), { headers: { authorization: `Bearer ${token}` } });
  check(answer.ok, `the payload of ${seq}: ${answer.status}`);
  return Buffer.from(await answer.arrayBuffer());
}

async function eachEvent(page, faults) {
  const { events } = await ask(address, token, `${of}/events?limit=1000`);
  const { dead } = await ask(address, token, `${of}/dead?limit=1000`);
  const ids = new Map(dead.map((letter) => [letter.seq, letter.id]));
  for (const [turn, { seq }] of events.entries()) {
    // A dead letter is opened as its list does, any other event by its number.
    await openAnew(page, at(`event/${ids.get(seq) ?? seq}`), ".timeline");
    await looksAtContents(page, `event ${seq}`, await payloadOf(seq), turn);
    isClean(faults.splice(0), `event ${seq}`);
  }
  check(dead.every(({ seq }) => events.some((event) => event.seq === seq)), "a dead letter's event is not in the log");
  return events.length;
}

async function eachCause(page, faults) {
  const { causes } = await ask(address, token, `${of}/dead/causes`);
  for (const { sink, fingerprint, error_code: code } of causes) {
    await openAnew(page, at("dead", { sink, ...(fingerprint ? { fingerprint } : { code }) }), ".cause-panel");
    await fits(page, `cause ${fingerprint}`);
    isClean(faults.splice(0), `cause ${fingerprint}`);
  }
  return causes.length;
}

async function eachLetter(page, faults) {
  const { consumers } = await ask(address, token, "consumers");
  let all = 0;
  for (const { consumer } of consumers) {
    const where = `consumers/${encodeURIComponent(consumer)}`;
    const { dead } = await ask(address, token, `${where}/dead?limit=1000`);
    for (const [turn, { letter }] of dead.entries()) {
      const [whole] = (await ask(address, token, `${where}/dead/${letter}`)).dead;
      const bytes = whole.payload != null ? Buffer.from(whole.payload) : Buffer.from(whole.payload_base16, "hex");
      await openAnew(page, at(where, { view: "dead", letter }), "main dl.facts");
      await panelOf(page, "Payload").waitFor();
      await looksAtContents(page, `letter ${letter}`, bytes, turn);
      isClean(faults.splice(0), `letter ${letter}`);
    }
    all += dead.length;
  }
  return all;
}

/** A key that is a trick for a shell, too: the command of the dialog means these letters, and no others. */
async function eachKey(page, faults) {
  const { dead } = await ask(address, token, `${of}/dead?limit=1000`);
  const keys = [...new Set(dead.map(({ key }) => key))];
  for (const key of keys) {
    await openAnew(page, at("dead", { key }), "main [data-row]");
    await page.locator("main .page-acts [data-act=replay]:not([aria-disabled])").click();
    const dialog = page.locator("dialog[open]");
    await dialog.getByLabel("Reason").fill(key);
    await dialog.locator("[data-count=goes]").filter({ hasText: String(dead.filter((letter) => letter.key === key).length) }).waitFor();
    await tellsCommand(page, "--reason");
    await fits(page, "a replay of a key");
    await page.keyboard.press("Escape");
    await dialog.waitFor({ state: "detached" });
    isClean(faults.splice(0), "a replay of a key");
  }
}

await withBrowser(async (browser) => {
  const { page, faults } = await tab(browser, address);
  await enter(page, address, token, at("overview"));
  await live(page);
  try {
    const events = await eachEvent(page, faults);
    const causes = await eachCause(page, faults);
    const letters = await eachLetter(page, faults);
    await eachKey(page, faults);
    console.log(`${events} events, ${causes} causes, ${letters} letters`);
  } catch (error) {
    throw new Error(`${error.stack}\n${page.url()}\n${(await page.locator("body").innerText().catch(() => "")).slice(0, 5_000)}`);
  }
});
