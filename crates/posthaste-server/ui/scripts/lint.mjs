// Refuses what the page must never have: ways to make markup of texts, addresses of others, timers in tests.
import { readdirSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const root = join(dirname(fileURLToPath(import.meta.url)), "..");
const rules = [
  [/innerHTML|outerHTML|insertAdjacentHTML|document\.write|srcdoc/, "makes markup of a text"],
  [/dangerouslySetInnerHTML/, "makes markup of a text"],
  [/\beval\s*\(|new Function\b|javascript:/, "makes script of a text"],
  [/setAttribute\(\s*["']style/, "an inline style as a text is refused by the policy"],
  [/document\.cookie/, "the session is kept for the tab alone"],
  [/https?:\/\/(?!www\.w3\.org)/, "asks somebody else"],
  [/import\(/, "is a second script"],
];
const linesMax = 500;

function* sources(folder) {
  for (const entry of readdirSync(join(root, folder), { withFileTypes: true })) {
    const path = `${folder}/${entry.name}`;
    if (entry.isDirectory()) yield* sources(path);
    else if (/\.(ts|tsx|css)$/.test(entry.name) && entry.name !== "api.d.ts") yield path;
  }
}

let found = 0;
for (const path of sources("src")) {
  const lines = readFileSync(join(root, path), "utf8").split("\n");
  if (lines.length > linesMax) {
    console.error(`${path}: ${lines.length} lines, at most ${linesMax}`);
    found += 1;
  }
  lines.forEach((line, index) => {
    for (const [pattern, why] of rules) {
      if (pattern.test(line)) {
        console.error(`${path}:${index + 1}: ${why}: ${line.trim()}`);
        found += 1;
      }
    }
  });
}
if (found > 0) process.exit(1);
console.log("lint: nothing found");
