// Looks at a report of epp sim as a reader does: in light and dark, wide and
// narrow. Usage: node page.cjs REPORT.html TABLE, the table being what the same run
// printed.
const assert = require("node:assert/strict");
const fs = require("node:fs");
const { chromium } = require("playwright-core");

const [report, table] = process.argv.slice(2);

// brightness of a colour such as rgb(24, 24, 24), 0–255.
const brightness = (rgb) => rgb.match(/[\d.]+/g).slice(0, 3).reduce((sum, v) => sum + v / 3, 0);

async function look(browser, colorScheme, width) {
  const page = await browser.newPage({ colorScheme, viewport: { width, height: 900 } });
  const asked = [], errors = [];
  page.on("request", (r) => asked.push(r.url()));
  page.on("console", (m) => errors.push(m.text()));
  page.on("pageerror", (e) => errors.push(String(e)));
  await page.goto("file://" + report);
  assert.deepEqual(asked, ["file://" + report], "the page asks for nothing but itself");
  assert.deepEqual(errors, []);

  const seen = await page.evaluate(() => {
    const text = (e) => e.textContent.trim();
    const box = (e) => { const r = e.getBoundingClientRect(); return { left: r.left, top: r.top, right: r.right, bottom: r.bottom }; };
    const style = getComputedStyle(document.body);
    return {
      titles: [...document.querySelectorAll("h2")].map(text),
      rows: [...document.querySelectorAll("table tr")].slice(1).map((tr) => [...tr.cells].map(text)),
      plots: [...document.querySelectorAll("svg")].map((svg) => ({
        box: box(svg),
        lines: [...svg.querySelectorAll("polyline")].map((l) => l.getTotalLength()),
        cells: svg.querySelectorAll("rect").length,
        marks: [...svg.querySelectorAll("text")].map((t) => ({ text: text(t), box: box(t) })),
      })),
      keys: [...document.querySelectorAll(".key")].map(text),
      ink: style.color, paper: style.backgroundColor,
      overflow: document.querySelector("svg").getBoundingClientRect().right > document.documentElement.clientWidth,
    };
  });
  await page.close();

  assert.deepEqual(seen.titles.slice(0, 4), ["Time to first token", "Time to the end", "Cached share of the prompts that arrive", "Requests that wait for their first token"]);
  assert.deepEqual(seen.titles.slice(4).map((t) => t.split(": ")[1]), ["weighted", "latency", "random"]);
  assert.equal(seen.plots.length, 7, "a plot below each title");
  seen.plots.forEach((plot, i) => {
    const where = `${seen.titles[i]}, ${colorScheme}, ${width} wide`;
    if (i < 4) {
      assert.equal(plot.lines.length, 3, `${where}: a line for each policy`);
      for (const length of plot.lines) assert(length > 300, `${where}: a line is ${length} long`);
      for (const policy of ["weighted", "latency", "random"]) assert(seen.keys[i].includes(policy), `${where}: the key has ${policy}`);
    } else {
      assert(plot.cells > 20, `${where}: ${plot.cells} cells`);
      assert(plot.marks.filter((m) => /^pod-\d$/.test(m.text)).length === 5, `${where}: five endpoints are named`);
    }
    for (const m of plot.marks) {
      assert(m.text.length <= 18, `${where}: mark "${m.text}"`);
      assert(m.box.left >= plot.box.left - 1 && m.box.right <= plot.box.right + 1 && m.box.bottom <= plot.box.bottom + 1, `${where}: "${m.text}" is cut`);
    }
    const overlap = plot.marks.some((a, k) => plot.marks.slice(k + 1).some((b) =>
      a.box.left < b.box.right - 1 && b.box.left < a.box.right - 1 && a.box.top < b.box.bottom - 2 && b.box.top < a.box.bottom - 2));
    assert(!overlap, `${where}: marks overlap`);
  });
  assert(!seen.overflow, `${colorScheme}, ${width} wide: plots are wider than the window`);
  assert(Math.abs(brightness(seen.ink) - brightness(seen.paper)) > 150, `${colorScheme}: ${seen.ink} on ${seen.paper}`);
  assert.equal(brightness(seen.paper) < 100, colorScheme === "dark", `${colorScheme}: paper is ${seen.paper}`);

  // What the page says is what the terminal said.
  const printed = fs.readFileSync(table, "utf8").split("\n").slice(3).filter((l) => l.trim()).map((l) => l.trim().split(/\s+/));
  assert.equal(printed.length, 3);
  printed.forEach(([policy, hit, mean, p50, p99, e2e, e99, failed, dollars], i) => {
    const [name, share, , ...figures] = seen.rows[i];
    const busiest = figures.splice(5, 1)[0];
    assert.deepEqual([name.replace("■ ", ""), share, ...figures], [policy, hit + " %", mean, p50, p99, e2e, e99, failed, dollars]);
    assert(Number(busiest) >= 1, `${policy}: busiest ÷ mean is ${busiest}`);
  });
}

(async () => {
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ["--no-sandbox"] });
  try {
    for (const scheme of ["light", "dark"]) for (const width of [1200, 700]) await look(browser, scheme, width);
  } finally {
    await browser.close();
  }
  console.log("the report is drawn, in light and dark, wide and narrow; its figures are the terminal's");
})().catch((err) => {
  console.error(err);
  process.exit(1);
});
