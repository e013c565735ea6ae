import { readFileSync } from "node:fs";
import react from "@vitejs/plugin-react";
import type { Plugin } from "vite";
import { defineConfig } from "vitest/config";

// `apc ui` of a checkout answers the API while `npm run dev` serves the page.
const server = process.env.APC_WEB_URL ?? "http://127.0.0.1:8484";

/** Bytes of a file that is fetched when it is wanted, and not kept: the layout of graphs. */
const TOO_LARGE = 1_000_000;

/** Write the service worker with the names of the files that it keeps. */
function away(): Plugin {
  return {
    name: "away",
    apply: "build",
    generateBundle(_, bundle) {
      const isSmall = (name: string) => {
        const file = bundle[name]!;
        return (file.type === "asset" ? file.source : file.code).length < TOO_LARGE;
      };
      const files = ["/", "/icon.svg", ...Object.keys(bundle).filter((name) => name.startsWith("assets/") && isSmall(name)).map((name) => `/${name}`)];
      const source = readFileSync("src/away.js", "utf8").replace(/\[\/\*.*?\*\/\]/, JSON.stringify(files.sort()));
      this.emitFile({ type: "asset", fileName: "away.js", source });
    },
  };
}

export default defineConfig({
  plugins: [react(), away()],
  build: {
    outDir: "../apc_web/static",
    emptyOutDir: true,
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    target: "es2022",
  },
  server: { proxy: { "/api": { target: server, changeOrigin: true } } },
  test: { include: ["tests/unit/**/*.test.ts"], environment: "node" },
});
