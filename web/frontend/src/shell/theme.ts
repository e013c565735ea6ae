/** Light or dark: what the reader chose, else what the system has. */
import { useSyncExternalStore } from "react";
import { isPrinted, onPaper } from "../lib/paper";

export type Theme = "light" | "dark";
const KEY = "apc.theme";
const system = matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set<() => void>();

function current(): Theme {
  if (isPrinted()) return "light";
  const chosen = localStorage.getItem(KEY);
  return chosen === "light" || chosen === "dark" ? chosen : system.matches ? "dark" : "light";
}

export function applyTheme(): void {
  document.documentElement.dataset.theme = current();
  for (const listener of listeners) listener();
}

export function toggleTheme(): void {
  localStorage.setItem(KEY, current() === "dark" ? "light" : "dark");
  applyTheme();
}

system.addEventListener("change", applyTheme);
onPaper(applyTheme);

export function useTheme(): Theme {
  return useSyncExternalStore((listener) => {
    listeners.add(listener);
    return () => listeners.delete(listener);
  }, current);
}
