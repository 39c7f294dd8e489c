// Writes dist/SOURCE: one number over all sources, so that a test without Node sees whether dist/ is of them.
//
// For each file below ui/, by its path with `/`: the path, a zero byte, the SHA-256 of its bytes in hex, a
// line's end. The SHA-256 of all that, in hex, is the number. Left out are the folders dist, node_modules
// and screens, wherever they are.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const root = join(dirname(fileURLToPath(import.meta.url)), "..");
const leftOut = new Set(["dist", "node_modules", "screens"]);
const sha = (bytes) => createHash("sha256").update(bytes).digest("hex");

function* filesBelow(folder) {
  for (const entry of readdirSync(join(root, folder), { withFileTypes: true })) {
    const path = folder === "" ? entry.name : `${folder}/${entry.name}`;
    if (entry.isFile()) yield path;
    else if (entry.isDirectory() && !leftOut.has(entry.name)) yield* filesBelow(path);
  }
}

const byBytes = (a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b));
const lines = [...filesBelow("")].sort(byBytes).map((path) => `${path}\0${sha(readFileSync(join(root, path)))}\n`);
writeFileSync(join(root, "dist", "SOURCE"), `${sha(lines.join(""))}\n`);
