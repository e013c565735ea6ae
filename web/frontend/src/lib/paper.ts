/** Whether the page is being printed: paper has light colours and does not scroll. */
import { useSyncExternalStore } from "react";

const paper = matchMedia("print");

export const isPrinted = (): boolean => paper.matches;

export function onPaper(listener: () => void): () => void {
  paper.addEventListener("change", listener);
  return () => paper.removeEventListener("change", listener);
}

export const useIsPrinted = (): boolean => useSyncExternalStore(onPaper, isPrinted);
