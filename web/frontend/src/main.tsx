import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { RouterProvider } from "@tanstack/react-router";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { ApiProblem, takeToken } from "./api/client";
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
  event.preventDefault();
  location.reload();
});

const client = new QueryClient({
  defaultOptions: {
    queries: {
      staleTime: 5_000,
      retry: (failures, error) => !(error instanceof ApiProblem && error.status >= 400 && error.status < 500) && failures < 2,
      // A server that went away comes back without a reload of the page.
      refetchInterval: (query) => (query.state.error instanceof ApiProblem && query.state.error.status === 0 ? 3_000 : false),
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
