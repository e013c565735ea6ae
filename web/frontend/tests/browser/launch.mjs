// A real Chromium without system packages, and a page that knows the token.
import chromium from "@sparticuz/chromium";
import { chromium as playwright } from "playwright-core";

export async function launch() {
  const executablePath = process.env.APC_TEST_CHROMIUM ?? (await chromium.executablePath());
  return playwright.launch({ executablePath, headless: true, args: chromium.args.filter((one) => !one.startsWith("--headless") && one !== "--single-process") });
}

/** Open a page that fails the run on script errors, refused requests and everything asked of a third party. */
export async function openPage(browser, url, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, ...options });
  const page = await context.newPage();
  const faults = [];
  page.on("pageerror", (error) => faults.push(`script error: ${error.message}`));
  page.on("console", (message) => {
    const text = message.text();
    if (message.type() === "error" && !text.includes("Failed to load resource")) faults.push(`console: ${text}`);
  });
  page.on("request", (request) => {
    const from = new URL(request.url());
    if (!["data:", "blob:"].includes(from.protocol) && from.origin !== new URL(url).origin) faults.push(`third party: ${request.url()}`);
  });
  return { context, page, faults };
}
