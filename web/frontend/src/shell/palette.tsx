/** Ctrl-K: go to a page, a run, a packet. */
import { useInfiniteQuery } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { Dialog } from "radix-ui";
import { useEffect, useState } from "react";
import { runs } from "../api/queries";
import { toggleTheme } from "./theme";

interface Choice {
  name: string;
  hint: string;
  go: () => void;
}

const PACKET = /^([0-9a-f]{8}-[0-9a-f-]{27}|\d+-\d+)$/i;

export function Palette({ isOpen, change }: { isOpen: boolean; change: (isOpen: boolean) => void }) {
  const navigate = useNavigate();
  const [text, type] = useState("");
  const [at, move] = useState(0);
  const known = useInfiniteQuery({ ...runs, enabled: isOpen }).data?.pages.flatMap((page) => page.items) ?? [];

  useEffect(() => {
    const open = (event: globalThis.KeyboardEvent) => {
      if (event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        change(true);
      }
    };
    addEventListener("keydown", open);
    return () => removeEventListener("keydown", open);
  }, [change]);

  const wanted = text.trim();
  const pages: Choice[] = [
    { name: "Overview", hint: "Page", go: () => void navigate({ to: "/" }) },
    { name: "Runs", hint: "Page", go: () => void navigate({ to: "/runs" }) },
    { name: "Inbox", hint: "Page", go: () => void navigate({ to: "/inbox" }) },
    { name: "Arbitrations", hint: "Page", go: () => void navigate({ to: "/arbitrations" }) },
    { name: "Agents", hint: "Page", go: () => void navigate({ to: "/agents" }) },
    { name: "Chat", hint: "Page", go: () => void navigate({ to: "/chat" }) },
    { name: "Switch between light and dark", hint: "Command", go: toggleTheme },
  ];
  const found: Choice[] = known.map((run) => ({
    name: run.run_id,
    hint: run.running > 0 ? "Run, in progress" : "Run",
    go: () => void navigate({ to: "/runs/$runId", params: { runId: run.run_id } }),
  }));
  const matching = [...pages, ...found].filter((choice) => choice.name.toLowerCase().includes(wanted.toLowerCase()));
  const packet: Choice = { name: wanted, hint: "Packet", go: () => void navigate({ to: "/packets/$packetId", params: { packetId: wanted } }) };
  const choices = PACKET.test(wanted) ? [packet] : matching.slice(0, 50);
  const index = Math.min(at, choices.length - 1);

  function take(choice: Choice | undefined): void {
    if (!choice) return;
    change(false);
    type("");
    choice.go();
  }

  return (
    <Dialog.Root open={isOpen} onOpenChange={change}>
      <Dialog.Portal>
        <Dialog.Overlay className="overlay" />
        <Dialog.Content className="palette" aria-describedby={undefined}>
          <Dialog.Title className="sr">Go to a page, a run or a packet</Dialog.Title>
          <input
            role="combobox"
            aria-expanded="true"
            aria-controls="choices"
            aria-activedescendant={index >= 0 ? `choice-${index}` : undefined}
            aria-label="Page, run or packet id"
            placeholder="Page, run, or packet id"
            value={text}
            onChange={(event) => {
              type(event.target.value);
              move(0);
            }}
            onKeyDown={(event) => {
              if (event.key === "ArrowDown" || event.key === "ArrowUp") {
                event.preventDefault();
                const step = event.key === "ArrowDown" ? 1 : choices.length - 1;
                move((index + step) % Math.max(1, choices.length));
              } else if (event.key === "Enter") {
                take(choices[index]);
              }
            }}
          />
          <ul id="choices" role="listbox" aria-label="Choices">
            {choices.map((choice, place) => (
              <li key={`${choice.hint} ${choice.name}`} id={`choice-${place}`} role="option" aria-selected={place === index} onClick={() => take(choice)} onMouseMove={() => move(place)}>
                <span className={choice.hint.startsWith("Run") || choice.hint === "Packet" ? "mono" : undefined}>{choice.name}</span>
                <span>{choice.hint}</span>
              </li>
            ))}
            {choices.length === 0 && <li className="quiet">Nothing of that name. Paste a packet id to open a packet.</li>}
          </ul>
        </Dialog.Content>
      </Dialog.Portal>
    </Dialog.Root>
  );
}
