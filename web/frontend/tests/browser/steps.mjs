// What the scripts over a page share: a check of accessibility, and a run of named steps.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

/** Pixels below the content that are no part of it: the space above the navigation of narrow windows. */
const BELOW = 90;

/** Fail when the page is wider than its window, or longer than what it shows. */
async function sized(page, name) {
  const { wide, long } = await page.evaluate(() => {
    const { scrollWidth, clientWidth, scrollHeight, clientHeight } = document.documentElement;
    const end = document.querySelector("main").getBoundingClientRect().bottom + scrollY;
    return { wide: scrollWidth - clientWidth, long: scrollHeight - Math.max(end, clientHeight) };
  });
  must(wide <= 0, `${name} scrolls sideways by ${wide} pixels`);
  must(long <= BELOW, `${name} goes on for ${Math.round(long)} pixels below its content`);
}

/** Fail on a serious or critical finding of axe-core, in the theme that is on; or on a page of the wrong size. */
export async function accessible(page, name) {
  await sized(page, name);
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => window.axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21aa", "wcag22aa"] }));
  const grave = violations.filter((one) => ["serious", "critical"].includes(one.impact));
  const words = grave.map((one) => `${one.id}: ${one.nodes.slice(0, 3).map((node) => `${node.target} ${node.failureSummary}`).join("; ")}`);
  if (grave.length > 0) throw new Error(`axe-core on ${name}: ${words.join("\n")}`);
}

/** The same in both themes; it begins and ends with light colours. */
export async function accessibleInBoth(page, name) {
  await accessible(page, `${name}, light`);
  await page.getByRole("button", { name: "Use dark colours" }).click();
  await accessible(page, `${name}, dark`);
  await page.getByRole("button", { name: "Use light colours" }).click();
}

export function must(condition, words) {
  if (!condition) throw new Error(words);
}

/** Wait until a page has its heading, or says why there is none, and loads nothing any more. */
export async function settled(page) {
  await page.locator("main h1, main .state strong, main h2").first().waitFor();
  await page.waitForFunction(() => !document.querySelector(".bone"));
}

/** Run the steps in order until one fails, print each, close the browser, and exit: 1 = a step or the page failed. */
export async function runSteps(steps, browser, page, faults) {
  let failed = false;
  for (const [name, step] of Object.entries(steps)) {
    try {
      await step();
      console.log(`ok: ${name}`);
    } catch (error) {
      failed = true;
      console.log(`FAILED: ${name}: ${error.message}`);
      if (process.env.APC_PAGE_FAILURES) await page.screenshot({ path: `${process.env.APC_PAGE_FAILURES}/failure.png`, fullPage: true });
      break;
    }
  }
  const known = [...new Set(faults)];
  if (known.length > 0) console.log(`FAILED: ${known.join("\n")}`);
  await browser.close();
  process.exit(failed || known.length > 0 ? 1 : 0);
}
