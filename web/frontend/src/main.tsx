import { QueryClientProvider } from "@tanstack/react-query";
import { RouterProvider } from "@tanstack/react-router";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { makeQueryClient } from "./api/query-client";
import { greet, takeToken } from "./api/token";
import { router } from "./router";
import { applyTheme } from "./shell/theme";
import "./styles/tokens.css";
import "./styles/base.css";
import "./styles/shell.css";
import "./styles/parts.css";
import "./styles/chat.css";

takeToken();
applyTheme();
await greet();

// A new link, opened in the tab of an old one, changes only the fragment.
addEventListener("hashchange", () => {
  if (!location.hash.includes("token=")) return;
  takeToken();
  location.reload();
});

// A page of an older build asks for files that a newer server no longer has.
addEventListener("vite:preloadError", (event) => {
  const last = Number(sessionStorage.getItem("apc.reloaded") ?? 0);
  if (Date.now() - last < 30_000) return; // loading again did not help: the page says what failed
  event.preventDefault();
  sessionStorage.setItem("apc.reloaded", String(Date.now()));
  location.reload();
});

// Once the page is there, so that it does not wait for files of other pages.
if (import.meta.env.PROD && "serviceWorker" in navigator) {
  const keep = () => void navigator.serviceWorker.register("/away.js").catch(() => undefined);
  if (document.readyState === "complete") keep();
  else addEventListener("load", keep);
}

const client = makeQueryClient();

createRoot(document.getElementById("root")!).render(
  <StrictMode>
    <QueryClientProvider client={client}>
      <RouterProvider router={router} />
    </QueryClientProvider>
  </StrictMode>,
);
