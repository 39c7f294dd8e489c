import { type Plugin, defineConfig } from "vite";

// One script and one style sheet under names that stay: the binary embeds them by name, and tells a browser
// by a hash of their bytes whether it has them already. Addresses are relative: a proxy may put the page under any
// path. Nothing is written into the script as a data: address, which the content security policy refuses.

/** Takes out of uPlot what no chart here has, so that what only that needs is left out, too. */
function smallerPlot(): Plugin {
  const unused = ["(paths.stepped = stepped);", "(paths.bars    = bars);", "(paths.spline  = monotoneCubic);", "uPlot.join = join;", "uPlot.tzDate  = tzDate;", "uPlot.orient   = orient;", "uPlot.clipGaps = clipGaps;", "uPlot.addGap = addGap;", "uPlot.fmtDate = fmtDate;"];
  // Axes of time (ours has steps and texts of its own), scales that are not linear, points, bands and the legend.
  const emptied = ["genTimeStuffs", "timeAxisStamps", "timeAxisVals", "timeAxisVal", "timeSeriesStamp", "timeSeriesVal", "fmtDate", "logAxisSplits", "asinhAxisSplits", "log10AxisValsFilt", "log2AxisValsFilt", "rangeLog", "rangeAsinh", "points", "bandFillClipDirs", "clipBandLine"];
  // Inside of it: zooming by the mouse, series that come and go, and more of the legend.
  const inner = ["mouseDown", "mouseUp", "dblClick", "initLegendRow", "setLegend", "setLegendValues", "syncLegend", "toggleDOM", "addSeries", "delSeries", "addBand", "setFocus", "setSeries"];
  // Within those: selecting by the mouse, points under the cursor, the legend, titles of axes.
  const blocks = ["\t\tif (select.show && dragging) {", "\t\tif (dragging) {", "\tif (showLegend) {", "\t\t\tif (axis.label != null) {", "\t\t\t\t\tif (shouldSetLegend || cursorOnePt) {", "\t\t\tif (cursorOnePt) {", "\t\t\tif (cursorOnePt) {", "\t\t\t\t\tif (cursorFocus && yVal2 != null) {", "\tif (cursor.dataIdx == null) {"];
  const cut = (text: string, from: string, to: string, stead: string): string => {
    const begin = text.indexOf(from);
    const end = text.indexOf(to, begin + from.length);
    if (begin < 0 || end < 0) throw new Error(`uPlot has changed: there is no ${from}`);
    return text.slice(0, begin) + stead + text.slice(end + to.length);
  };
  return {
    name: "smaller-plot",
    transform(code, id) {
      if (!id.includes("uPlot.esm.js")) return null;
      const bare = unused.reduce((text, line) => cut(text, line, "", ""), code);
      const outer = emptied.reduce((text, name) => cut(text, `\nfunction ${name}(`, "\n}\n", `\nfunction ${name}() { return [[], [], () => 0]; }\n`), bare);
      const whole = blocks.reduce((text, head) => cut(text, `\n${head}`, `\n${head.replace(/\S.*/, "")}}\n`, "\nif (0) {}\n"), outer);
      return inner.reduce((text, name) => cut(text, `\n\tfunction ${name}(`, "\n\t}\n", `\n\tfunction ${name}() {}\n`), whole);
    },
  };
}

export default defineConfig({
  base: "./",
  plugins: [smallerPlot()],
  // Calls of `h` are shorter than those of the newer runtime: a twentieth of the script.
  oxc: { jsx: { runtime: "classic", pragma: "h", pragmaFrag: "Fragment" }, jsxInject: 'import { Fragment, h } from "preact";' },
  build: {
    outDir: "dist",
    emptyOutDir: true,
    target: ["chrome123", "firefox128", "safari17.5"],
    assetsInlineLimit: 0,
    assetsDir: ".",
    cssCodeSplit: false,
    modulePreload: false,
    reportCompressedSize: false,
    rollupOptions: {
      output: {
        entryFileNames: "app.js",
        assetFileNames: "app[extname]",
        codeSplitting: false,
      },
    },
  },
  server: {
    proxy: { "/api": "http://127.0.0.1:7679" },
  },
});
