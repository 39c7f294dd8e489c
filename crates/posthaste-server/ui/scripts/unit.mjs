// Compiles the unit tests with the compiler of the page, and runs them with Node's own runner.
import { spawnSync } from "node:child_process";
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "vite";

const root = join(dirname(fileURLToPath(import.meta.url)), "..");
const folder = join(root, "tests", "unit");
const out = mkdtempSync(join(root, "node_modules", ".unit-"));
const input = readdirSync(folder).filter((name) => name.endsWith(".test.ts")).map((name) => join(folder, name));
try {
  await build({ root, configFile: false, logLevel: "error", build: { ssr: true, outDir: out, rollupOptions: { input } } });
  const tests = readdirSync(out).filter((name) => name.endsWith(".test.js")).map((name) => join(out, name));
  const run = spawnSync(process.execPath, ["--test", "--test-reporter=dot", ...tests], { stdio: "inherit" });
  process.exitCode = run.status ?? 1;
} finally {
  rmSync(out, { recursive: true });
}
