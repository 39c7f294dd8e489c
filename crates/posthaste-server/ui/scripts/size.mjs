// What a browser fetches of script and style, compressed, stays within the budget. A newcomer with a slow line waits
// for every byte of it before the first number is there.
import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

const SIZE_MAX = 70_000;
const dist = join(dirname(fileURLToPath(import.meta.url)), "..", "dist");
const sizes = ["app.js", "app.css"].map((name) => gzipSync(readFileSync(join(dist, name)), { level: 9 }).length);
const size = sizes.reduce((sum, one) => sum + one, 0);
console.log(`size: script ${sizes[0]} and style ${sizes[1]} bytes compressed: ${size} of at most ${SIZE_MAX}`);
if (size > SIZE_MAX) process.exit(1);
