// The budgets of the page: node tests/browser/budgets.mjs '{"url", "run", "part", "seconds"}'. Prints one JSON object.
import { gzipSync } from "node:zlib";
import { launch, openPage } from "./launch.mjs";

const { url, run, part, seconds } = JSON.parse(process.argv[2]);
const browser = await launch();
const { page, faults, context } = await openPage(browser, url);
page.setDefaultTimeout(120_000);
const session = await context.newCDPSession(page);

await page.addInitScript(() => {
  window.tasks = [];
  new PerformanceObserver((list) => window.tasks.push(...list.getEntries().map((one) => one.duration))).observe({ type: "longtask", buffered: true });
});

/** The longest main-thread task since the last question; tasks under 50 ms are not seen, and count as 50. */
const longest = () => page.evaluate(() => Math.max(50, ...window.tasks.splice(0)));

async function open(path) {
  const began = Date.now();
  await page.goto(`${url}${path}`);
  await page.locator(".timeline canvas").waitFor();
  await page.locator('[role="row"] [role="gridcell"]').first().waitFor();
  return Date.now() - began;
}

async function heap() {
  await session.send("HeapProfiler.enable");
  for (let time = 0; time < 3; time += 1) await session.send("HeapProfiler.collectGarbage");
  return (await session.send("Runtime.getHeapUsage")).usedSize / 1e6;
}

async function pan(area, zoomKey) {
  const box = await area.boundingBox();
  const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
  for (let step = 0; step < 60; step += 1) await page.mouse.move(x - 200 + step * 6, y - 20 + (step % 9) * 5);
  await page.mouse.down();
  for (let step = 0; step < 30; step += 1) await page.mouse.move(x - 100 + step * 8, y);
  await page.mouse.up();
  if (zoomKey) await page.keyboard.down(zoomKey);
  for (let step = 0; step < 12; step += 1) await page.mouse.wheel(0, step < 6 ? -120 : 120);
  if (zoomKey) await page.keyboard.up(zoomKey);
  await page.waitForTimeout(500);
}

const parts = {
  async start() {
    await page.goto("about:blank");
    const began = Date.now();
    await page.goto(url);
    await page.locator(".timeline canvas").waitFor();
    await page.locator('[role="row"] [role="gridcell"]').first().waitFor();
    return { interactive_ms: Date.now() - began };
  },
  async first() {
    await page.goto(`${url}/`); // Chromium itself is warm
    await page.goto("about:blank");
    const scripts = new Map();
    page.on("response", (response) => {
      if (response.request().resourceType() === "script") scripts.set(response.url(), response.body());
    });
    await context.clearCookies();
    await session.send("Network.clearBrowserCache");
    const interactive = await open(`/runs/${run}`);
    const bodies = await Promise.all(scripts.values());
    return { interactive_ms: interactive, script_kb: bodies.reduce((sum, body) => sum + gzipSync(body, { level: 9 }).length, 0) / 1000 };
  },
  async large() {
    const interactive = await open(`/runs/${run}`);
    await page.waitForTimeout(1500);
    const load = await longest();
    await page.locator(".timeline").scrollIntoViewIfNeeded();
    await pan(page.locator(".timeline canvas"));
    const panning = await longest();
    const rows = await page.locator('[role="grid"] [role="row"]').count();
    await page.goto(`${url}/runs/${run}?view=graph`);
    const graph = page.locator(".graph canvas").last();
    await graph.waitFor();
    await graph.scrollIntoViewIfNeeded();
    await page.waitForTimeout(2000);
    await longest();
    await pan(graph, "Control");
    const drawing = await longest();
    return { interactive_ms: interactive, load_task_ms: load, pan_task_ms: panning, graph_task_ms: drawing, rows, heap_mb: await heap() };
  },
  async table() {
    const began = Date.now();
    const first = await open(`/runs/${run}`);
    const grid = page.locator('[role="grid"][aria-label="Packets"]');
    await page.getByText("more are loading").waitFor({ state: "detached" });
    const whole = Date.now() - began;
    const known = Number(await grid.getAttribute("aria-rowcount")) - 1;
    await grid.scrollIntoViewIfNeeded();
    await longest();
    let rows = 0;
    const steps = 40;
    for (let step = 0; step <= steps; step += 1) {
      await grid.evaluate((element, part) => (element.scrollTop = element.scrollHeight * part), step / steps);
      await page.waitForTimeout(50);
      rows = Math.max(rows, await grid.locator('[role="row"]').count());
    }
    const scroll = await longest();
    await grid.focus();
    const pressed = Date.now();
    await page.keyboard.press("End");
    await page.waitForFunction((last) => document.querySelector(`[role="grid"][aria-label="Packets"] [role="row"][aria-rowindex="${last}"]`), known + 1);
    return { first_ms: first, whole_ms: whole, packets: known, end_ms: Date.now() - pressed, scroll_task_ms: scroll, rows, heap_mb: await heap() };
  },
  async live() {
    await open(`/runs/${run}`);
    const samples = await page.evaluate(
      (time) =>
        new Promise((done) => {
          const found = [];
          const end = performance.now() + time;
          const look = () => {
            const rows = Number(document.querySelector('[role="grid"]')?.getAttribute("aria-rowcount") ?? 1) - 1;
            if (rows > 0 && rows !== found.at(-1)?.[0]) found.push([rows, Date.now()]);
            if (performance.now() < end) requestAnimationFrame(look);
            else done(found);
          };
          look();
        }),
      (seconds + 12) * 1000,
    );
    return { samples };
  },
};

const found = await parts[part]();
if (faults.length > 0) console.error([...new Set(faults)].join("\n"));
await browser.close();
console.log(JSON.stringify(found));
