// Somebody who has read the README and nothing else: opens the link, finds the poisonous event, sees why it died, replays
// it, sees it die again, discards it with a reason, and finds all three in the audit. Then sees the outage come.
//
//   node newcomer.mjs LINK     says `session` and in the next line one of the tab's, for whoever looks on
import { check, filled, isClean, live, tab, withBrowser } from "./browser.mjs";

const [link] = process.argv.slice(2);

await withBrowser(async (browser) => {
  const { page, faults } = await tab(browser, link);
  const dialog = page.locator("dialog[open]");
  const act = async (button, reason) => {
    await page.locator("main").getByRole("button", { name: button }).first().click();
    await dialog.getByLabel("Reason").fill(reason);
    await dialog.locator("[data-count=goes]").filter({ hasText: /^1$/ }).waitFor();
    await dialog.locator(".dialog-foot .act").last().click();
    await dialog.waitFor({ state: "detached" });
  };
  await page.goto(link);
  await page.locator(".frame").waitFor();
  check(!page.url().includes("code="), "the code is left in the address");
  await live(page);
  await page.locator(".health a", { hasText: /dead letter/ }).click();
  await filled(page, "#/shop/dead");
  await page.locator("main table").last().locator("[data-row] a").last().click();
  await page.locator(".timeline").waitFor();
  const event = page.url();
  await page.locator("main").getByText(/the payload is not JSON/).first().waitFor();
  await page.locator(".block").filter({ hasText: "{\"order\"" }).waitFor();
  const deaths = () => page.locator(".moment-dead").count();
  check((await deaths()) === 1, "it has died once");

  await act(/^Replay at/, "is it mended?");
  // It dies again: the timeline has the replay, and behind it a failure.
  // The job that did it has the same reason and a moment of its own.
  await page.locator(".moment-act").filter({ hasText: /replay by .*is it mended\?/ }).waitFor();
  await page.locator(".moment-act ~ .moment-dead").first().waitFor();
  await act(/^Discard at/, "never was an order");
  await page.locator(".moment-act").filter({ hasText: /discard by .*never was an order/ }).waitFor();
  await page.locator("main .chip-bad").waitFor({ state: "detached" });

  await page.getByRole("navigation").getByRole("link", { name: "Audit" }).click();
  for (const [action, reason] of [["replay", "is it mended?"], ["discard", "never was an order"]]) {
    await page.locator("main [data-row]").filter({ hasText: reason }).filter({ has: page.getByText(action, { exact: true }) }).first().waitFor();
  }
  // A link that was used is none any more, and says so.
  const other = await tab(browser, link);
  await other.page.goto(link);
  await other.page.getByText("This link was used already").waitFor();
  await other.context.close();

  // The broker goes away once a minute: the overview names it, and it is over by itself.
  await page.goto(`${event.split("#")[0]}#/shop/overview`);
  await page.locator("[data-health=bad]").filter({ hasText: /local/ }).filter({ hasText: /out of reach/ }).waitFor({ timeout: 120_000 });
  await page.locator("[data-health=warn], [data-health=ok]").waitFor();
  isClean(faults, "a newcomer");
  console.log("session");
  console.log(await page.evaluate(() => sessionStorage.getItem("posthaste.session")));
});
