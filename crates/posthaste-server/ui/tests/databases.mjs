// Several outboxes, of which one is well, one is away, one slow, one too old, and one an adopted table; and a relay
// that is newer than the page. Each page says what it knows, and the one that is well works meanwhile.
//
//   node databases.mjs ADDRESS TOKEN     says `slow comes back` when that one may answer again
import { check, enter, filled, fits, isClean, live, tab, withBrowser } from "./browser.mjs";

const [address, token] = process.argv.slice(2);
const PAGES = ["overview", "dead", "deferred", "events", "lanes", "consumers", "jobs", "audit", "settings"];

await withBrowser(async (browser) => {
  const { page, faults } = await tab(browser, address);
  await enter(page, address, token, "#/well/overview");
  await live(page);
  const row = (name) => page.locator("main [data-row]").filter({ has: page.getByRole("link", { name, exact: true }) });
  for (const [name, words] of [["away", /refused/], ["old", /migrate up/], ["slow", /no answer/]]) {
    await row(name).filter({ hasText: "cannot be reached" }).filter({ hasText: words }).waitFor();
  }
  check(!(await page.locator("body").innerText()).includes("hunter2"), "a password is shown");
  await row("well").locator(".chip-ok").waitFor();
  await page.locator("[data-sink=out]").getByText("delivers").or(page.locator("[data-sink=out]").getByText("at rest")).waitFor();

  // The relay of a version that is to come is listed, and what it says is called newer.
  await page.goto(`${address}#/well/lanes`);
  await filled(page, "#/well/lanes");
  await page.locator("main [data-row]").filter({ hasText: "new:9" }).filter({ hasText: "9.0.0" }).filter({ hasText: "newer" }).waitFor();

  // Each page of one that cannot be reached says so, by what to do about it, and no page is left waiting.
  for (const [name, words] of [["away", /refused/], ["old", /migrate up/]]) {
    for (const of of PAGES) {
      await page.goto(`${address}#/${name}/${of}`);
      await filled(page, `#/${name}/${of}`);
      if (["overview", "dead", "deferred", "events", "lanes", "jobs"].includes(of)) await page.locator("main").getByText(words).first().waitFor();
      check(await page.locator("main .waiting").count() === 0, `${of} of ${name} waits for ever`);
      await fits(page, `${of} of ${name}`);
    }
  }

  // An adopted table: what has no meaning says why, and everything else is there.
  await page.goto(`${address}#/adopted/overview`);
  await page.locator(".adopted").waitFor();
  await page.locator("[data-sink=out]").waitFor();
  const told = [];
  for (const of of PAGES) {
    await page.goto(`${address}#/adopted/${of}`);
    await filled(page, `#/adopted/${of}`);
    // Consumers and the audit are those of all databases: they say which ones are missing, and the audit where an
    // adopted table has its own.
    const isOfAll = of === "consumers" || of === "audit";
    const wrong = (await page.locator("main .note-bad").allInnerTexts()).filter((text) => !isOfAll || !/outbox `(away|old|slow)`|an adopted table: its audit is/.test(text));
    check(wrong.length === 0, `${of} of an adopted table: ${await page.locator("main").innerText()}`);
    if (await page.locator("main .note-quiet").count() > 0) told.push(of);
    await fits(page, `${of} of an adopted table`);
  }
  for (const of of ["jobs", "settings"]) check(told.includes(of), `${of} of an adopted table says nothing: only ${told} do`);
  for (const of of ["dead"]) {
    await page.goto(`${address}#/adopted/${of}`);
    await filled(page, `#/adopted/${of}`);
    const why = await page.locator("main [data-act=replay]").first().getAttribute("title");
    check(Boolean(why), `replay of an adopted table is disabled and does not say why`);
  }

  // It comes back, and nobody has to load anything again.
  await page.goto(`${address}#/slow/overview`);
  await page.locator("[data-health=unreachable]").filter({ hasText: "no answer" }).waitFor();
  console.log("slow comes back");
  await page.locator("main").getByText(/No sinks yet|All is well/).first().waitFor();
  isClean(faults, "databases");
});
