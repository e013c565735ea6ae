import react from "@vitejs/plugin-react";
import { defineConfig } from "vitest/config";

// `apc ui` of a checkout answers the API while `npm run dev` serves the page.
const server = process.env.APC_WEB_URL ?? "http://127.0.0.1:8484";

export default defineConfig({
  plugins: [react()],
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
