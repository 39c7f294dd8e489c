// A page behind a proxy, under a path: its stream is cut for ten seconds, and comes back without a reload; its server is
// restarted, and whoever enters again is where they were.
//
//   node lines.mjs ADDRESS TOKEN     says `restart`, and then wants the new address in a line
import { createInterface } from "node:readline/promises";
import { check, enter, filled, fits, goTo, isClean, live, tab, withBrowser } from "./browser.mjs";
import { startProxy } from "./proxy.mjs";

const [address, token] = process.argv.slice(2);
const CUT_MS = 10_000;

/** Somebody else's pause of a sink, straight at the server. */
async function control(isPaused, reason) {
  const answer = await fetch(new URL("api/v1/outboxes/a/sinks/out/control", address), {
    method: "PUT", headers: { authorization: `Bearer ${token}`, "content-type": "application/json" }, body: JSON.stringify({ paused: isPaused, reason }),
  });
  check(answer.ok, `${answer.status} ${await answer.text()}`);
}

await withBrowser(async (browser) => {
  const proxy = await startProxy(address, { prefix: "/ops/posthaste/" });
  const { page, faults } = await tab(browser, proxy.address);
  let isCut = false;
  page.on("response", (answer) => { if (answer.status() >= 400 && !isCut) faults.push(`${answer.status()} ${answer.url()}`); });
  page.on("request", (request) => { if (!new URL(request.url()).pathname.startsWith("/ops/posthaste/")) faults.push(`outside of its path: ${request.url()}`); });

  await enter(page, proxy.address, token, "#/a/overview");
  await live(page);
  for (const name of ["dead", "events", "lanes", "jobs", "audit", "settings", "overview"]) await goTo(page, `#/a/${name}`);
  await fits(page, "overview under a path");
  isClean(faults, "under a path");

  // The mark would not outlive a reload.
  await page.evaluate(() => { globalThis.mark = "here"; });
  const dead = page.locator("[data-sink=out] .figure", { hasText: "dead" }).locator("dd");
  const before = await dead.innerText();
  isCut = true;
  const begun = Date.now();
  proxy.cut();
  await page.locator("[data-live=stale]").filter({ hasText: "since" }).waitFor();
  check((await dead.innerText()) === before, "numbers are gone while the line is cut");
  await control(true, "meanwhile");
  await page.waitForTimeout(Math.max(0, CUT_MS - (Date.now() - begun))); // ten seconds are what is asked for
  check(await page.locator("[data-live=stale]").count() === 1, "it believes to be live");
  proxy.mend();
  await live(page);
  await page.locator("[data-sink=out]").getByText("meanwhile").waitFor();
  check(await page.evaluate(() => globalThis.mark) === "here", "it was loaded again");
  isCut = false;
  isClean(faults, "after a cut");
  await control(false, "done");
  await page.locator("[data-sink=out] .chip-paused").waitFor({ state: "detached" });

  // Another process answers: it knows no session of the one before.
  isCut = true;
  await goTo(page, "#/a/dead?code=payload.not_json");
  const lines = createInterface({ input: process.stdin });
  console.log("restart");
  proxy.pointAt((await lines[Symbol.asyncIterator]().next()).value);
  lines.close();
  // Streams to the old one end with it.
  await page.getByText("Your session has ended").waitFor();
  await page.getByLabel("Token").fill(token);
  await page.getByRole("button", { name: "Enter" }).click();
  await filled(page, "#/a/dead");
  check(page.url().endsWith("#/a/dead?code=payload.not_json"), `it forgot where it was: ${page.url()}`);
  await live(page);
  await page.locator("main [data-row]").first().waitFor();
  check(await page.evaluate(() => globalThis.mark) === "here", "it was loaded again");
  isClean(faults, "after a restart");
  proxy.close();
});
