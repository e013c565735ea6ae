import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { RouterProvider } from "@tanstack/react-router";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { againAfter, ApiProblem, takeToken } from "./api/client";
import { router } from "./router";
import { applyTheme } from "./shell/theme";
import "./styles/tokens.css";
import "./styles/base.css";
import "./styles/shell.css";
import "./styles/parts.css";
import "./styles/chat.css";

takeToken();
applyTheme();

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

const client = new QueryClient({
  defaultOptions: {
    queries: {
      staleTime: 5_000,
      retry: (failures, error) => !(error instanceof ApiProblem && error.status >= 400 && error.status < 500) && failures < 2,
      refetchInterval: (query) => againAfter(query.state.error, false),
    },
  },
});

createRoot(document.getElementById("root")!).render(
  <StrictMode>
    <QueryClientProvider client={client}>
      <RouterProvider router={router} />
    </QueryClientProvider>
  </StrictMode>,
);
