/** What the keyboard does here: `?` shows it. */
import { useNavigate } from "@tanstack/react-router";
import { Dialog } from "radix-ui";
import { useEffect, useRef } from "react";

const PAGES = { o: "/", r: "/runs", s: "/search", i: "/issues", n: "/inbox", a: "/agents", l: "/log" } as const;

const KEYS: [keys: string, does: string][] = [
  ["Ctrl K", "Go to a page, a run or a packet; search"],
  ["?", "This list"],
  ["g then o r s i n a l", "Overview, runs, search, issues, inbox, agents, log"],
  ["↑ ↓ or k j", "In a table: the row above or below"],
  ["Enter", "Open the row; with Ctrl in a new tab"],
  ["Page Up, Page Down, Home, End", "Ten rows, the first, the last"],
  ["← →", "On the timeline of a run: the packet before or after"],
  ["Esc", "Close what is open"],
];

function isTyping(event: KeyboardEvent): boolean {
  return event.target instanceof HTMLElement && (event.target.isContentEditable || ["INPUT", "TEXTAREA", "SELECT"].includes(event.target.tagName));
}

/** How long after `g` the second key counts, in milliseconds. */
const PAUSE = 1_500;

export function Shortcuts({ isOpen, change }: { isOpen: boolean; change: (isOpen: boolean) => void }) {
  const navigate = useNavigate();
  const began = useRef(-Infinity);
  useEffect(() => {
    const press = (event: KeyboardEvent) => {
      if (isTyping(event) || event.ctrlKey || event.metaKey || event.altKey) return;
      const page = PAGES[event.key as keyof typeof PAGES];
      if (event.key === "?") change(true);
      else if (page && event.timeStamp - began.current < PAUSE) void navigate({ to: page });
      began.current = event.key === "g" ? event.timeStamp : -Infinity;
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, [change, navigate]);
  return (
    <Dialog.Root open={isOpen} onOpenChange={change}>
      <Dialog.Portal>
        <Dialog.Overlay className="overlay" />
        <Dialog.Content className="dialog" aria-describedby={undefined}>
          <Dialog.Title>Keyboard</Dialog.Title>
          <dl className="facts">
            {KEYS.map(([keys, does]) => (
              <div key={keys} style={{ display: "contents" }}>
                <dt><kbd>{keys}</kbd></dt>
                <dd>{does}</dd>
              </div>
            ))}
          </dl>
          <div className="acts">
            <Dialog.Close className="button">Close</Dialog.Close>
          </div>
        </Dialog.Content>
      </Dialog.Portal>
    </Dialog.Root>
  );
}
