// Screenshots of every page, light and dark, wide and narrow: node tests/browser/screens.mjs URL TOKEN FOLDER [NAME=PATH…]
import { mkdirSync } from "node:fs";
import { launch, openPage } from "./launch.mjs";

const [url, token, folder, ...pages] = process.argv.slice(2);
mkdirSync(folder, { recursive: true });
const browser = await launch();
try {
  for (const colorScheme of (process.env.SCHEMES ?? "light dark").split(" ")) {
    for (const width of (process.env.WIDTHS ?? "1440 390").split(" ").map(Number)) {
      const { context, page, faults } = await openPage(browser, url, { colorScheme, viewport: { width, height: width > 500 ? 900 : 844 }, deviceScaleFactor: Number(process.env.SCALE ?? 1) });
      await page.goto(`${url}/#token=${token}`);
      for (const entry of pages) {
        const cut = entry.indexOf("=");
        await page.goto(`${url}${entry.slice(cut + 1)}`);
        await page.locator("main .card").first().waitFor();
        await page.waitForFunction(() => !document.querySelector(".bone") && !document.querySelector("main")?.textContent.includes("Checking…"));
        await page.evaluate(() => document.fonts.ready);
        await page.screenshot({ path: `${folder}/${entry.slice(0, cut)}-${colorScheme}-${width}.png`, fullPage: process.env.FULL !== "0" });
      }
      if (faults.length > 0) console.error([...new Set(faults)].join("\n"));
      await context.close();
    }
  }
} finally {
  await browser.close();
}
