// A real Chromium without system packages, and a page that knows the token.
import { createInterface } from "node:readline";
import chromium from "@sparticuz/chromium";
import { chromium as playwright } from "playwright-core";

/** What the package switches off for scrapers and users have on: with the first, same-origin writes send no Origin. */
const UNLIKE_USERS = ["--disable-web-security", "--allow-running-insecure-content", "--disable-site-isolation-trials", "--single-process"];

export async function launch() {
  const executablePath = process.env.APC_TEST_CHROMIUM ?? (await chromium.executablePath());
  const args = chromium.args.filter((one) => !one.startsWith("--headless") && !UNLIKE_USERS.includes(one));
  return playwright.launch({ executablePath, headless: true, args });
}

/** Open a page without the service worker, which hides requests from routes; it fails the run on script errors, refused requests and everything asked of a third party. */
export async function openPage(browser, url, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, serviceWorkers: "block", ...options });
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

let answers;

/** Let the process that started this one do something, and wait for it. */
export async function ask(act) {
  answers ??= createInterface({ input: process.stdin })[Symbol.asyncIterator]();
  console.log(`do: ${act}`);
  await answers.next();
}
