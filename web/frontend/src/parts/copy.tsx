/** Copy a text, or the address of exactly this view. */
import { useRouterState } from "@tanstack/react-router";
import { useEffect, useState } from "react";
import { Icon } from "../shell/icons";

/** Words for how it went, for two seconds. */
function useCopy(): [state: "" | "copied" | "failed", copy: (text: string) => void] {
  const [state, change] = useState<"" | "copied" | "failed">("");
  useEffect(() => {
    if (state === "") return;
    const timer = setTimeout(() => change(""), 2_000);
    return () => clearTimeout(timer);
  }, [state]);
  const copy = (text: string) => {
    navigator.clipboard.writeText(text).then(
      () => change("copied"),
      () => change("failed"),
    );
  };
  return [state, copy];
}

const WORDS = { "": "", copied: "Copied", failed: "The browser does not allow copying" };

export function CopyButton({ text, what }: { text: string; what: string }) {
  const [state, copy] = useCopy();
  return (
    <button
      type="button"
      className="copy"
      aria-label={`Copy this ${what}`}
      title={WORDS[state] || `Copy this ${what}`}
      onClick={(event) => {
        event.preventDefault();
        event.stopPropagation();
        copy(text);
      }}
    >
      <Icon name={state === "copied" ? "done" : "copy"} />
      <span className="sr" role="status">{WORDS[state]}</span>
    </button>
  );
}

/** Hand over exactly this view: the address has its filters, order, time range and selection, and never the token. */
export function CopyLink() {
  const [state, copy] = useCopy();
  const href = useRouterState({ select: (router) => router.location.href });
  return (
    <button type="button" className="button icon plain" title={WORDS[state] || "Copy a link to exactly this view"} aria-label="Copy a link to exactly this view" onClick={() => copy(location.origin + href.split("#")[0])}>
      <Icon name={state === "copied" ? "done" : "link"} />
      <span className="sr" role="status">{WORDS[state]}</span>
    </button>
  );
}
