/** Long parts of a content that open, and a count of those that are closed: who approves must have seen all of it. */
import { createContext, useContext, useEffect, useMemo, useState, type ReactNode } from "react";

interface Folds {
  isOpen: boolean;
  note: (closed: number) => void;
}

const Context = createContext<Folds>({ isOpen: false, note: () => undefined });

interface FoldsProps {
  children: (folds: { closed: number; openAll: () => void }) => ReactNode;
}

/** Counts the closed parts below it, and opens them all at once. */
export function CountedFolds({ children }: FoldsProps) {
  const [closed, change] = useState(0);
  const [isOpen, open] = useState(false);
  const folds = useMemo(() => ({ isOpen, note: (by: number) => change((old) => old + by) }), [isOpen]);
  return <Context.Provider value={folds}>{children({ closed, openAll: () => open(true) })}</Context.Provider>;
}

/** How many of `total` things to show: `first`, then `step` more with each call, or all when the reader opened all. */
export function useFold(total: number, first: number, step = Infinity): { shown: number; left: number; more: () => void } {
  const folds = useContext(Context);
  const [asked, ask] = useState(first);
  const shown = folds.isOpen ? total : Math.min(asked, total);
  const isClosed = shown < total;
  useEffect(() => {
    if (!isClosed) return;
    folds.note(1);
    return () => folds.note(-1);
  }, [isClosed, folds]);
  return { shown, left: total - shown, more: () => ask((old) => old + step) };
}
