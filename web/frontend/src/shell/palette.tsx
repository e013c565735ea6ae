/** Ctrl-K: go to a page, a run, a packet, or search for what they say. */
import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { Dialog } from "radix-ui";
import { useEffect, useState } from "react";
import type { Schemas } from "../api/client";
import { about, found, runs } from "../api/queries";
import { visible } from "../lib/format";
import { toggleTheme } from "./theme";

interface Choice {
  name: string;
  hint: string;
  go: () => void;
}

/** Characters from which on the log is searched. */
const SHORTEST = 2;
const HITS = 8;
const PAUSE_MS = 200;

/** What was typed last, once nothing has been typed for a moment. */
function useSettled(text: string): string {
  const [settled, settle] = useState(text);
  useEffect(() => {
    const timer = setTimeout(() => settle(text), PAUSE_MS);
    return () => clearTimeout(timer);
  }, [text]);
  return settled;
}

const PACKET = /^([0-9a-f]{8}-[0-9a-f-]{27}|\d+-\d+)$/i;

export function Palette({ isOpen, change }: { isOpen: boolean; change: (isOpen: boolean) => void }) {
  const navigate = useNavigate();
  const [text, type] = useState("");
  const [at, move] = useState(0);
  const canChat = useQuery(about).data?.can_chat;
  const role = useQuery(about).data?.role;
  const wanted = text.trim();
  const settled = useSettled(wanted);
  const known = useInfiniteQuery({ ...runs(), enabled: isOpen }).data?.pages.flatMap((page) => page.items) ?? [];
  const isSearching = isOpen && settled.length >= SHORTEST && role !== undefined && role !== "viewer";
  const hits = useInfiniteQuery({ ...found({ text: settled, limit: HITS }), enabled: isSearching }).data?.pages[0];

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

  const pages: Choice[] = [
    { name: "Overview", hint: "Page", go: () => void navigate({ to: "/" }) },
    { name: "Runs", hint: "Page", go: () => void navigate({ to: "/runs" }) },
    { name: "Search", hint: "Page", go: () => void navigate({ to: "/search" }) },
    { name: "Issues", hint: "Page", go: () => void navigate({ to: "/issues" }) },
    { name: "Inbox", hint: "Page", go: () => void navigate({ to: "/inbox" }) },
    { name: "Agents", hint: "Page", go: () => void navigate({ to: "/agents" }) },
    { name: "Log", hint: "Page", go: () => void navigate({ to: "/log" }) },
    ...(canChat ? [{ name: "Chat", hint: "Page", go: () => void navigate({ to: "/chat" }) }] : []),
    { name: "Switch between light and dark", hint: "Command", go: toggleTheme },
  ];
  const named = wanted.toLowerCase();
  const runChoice = (run: Schemas["RunSummary"]): Choice => ({
    name: [run.team, run.title].filter(Boolean).join(": ") || run.run_id,
    hint: run.running > 0 ? "Run, in progress" : "Run",
    go: () => void navigate({ to: "/runs/$runId", params: { runId: run.run_id } }),
  });
  const everywhere: Choice = { name: `Search for “${wanted}”`, hint: "Search", go: () => void navigate({ to: "/search", search: { q: wanted } }) };
  const said: Choice[] = (isSearching && hits ? hits.packets : []).map((one) => ({
    name: one.line || one.packet_id,
    hint: `${one.packet_type}, ${one.sender}`,
    go: () => void navigate({ to: "/packets/$packetId", params: { packetId: one.packet_id }, search: { session: one.session_id } }),
  }));
  const nearby = known.filter((run) => [run.run_id, run.team, run.title].some((one) => one?.toLowerCase().includes(named)));
  const runsFound = [...new Map([...nearby, ...(isSearching && hits ? hits.runs : [])].map((run) => [run.run_id, run])).values()];
  const matching = [
    ...pages.filter((choice) => choice.name.toLowerCase().includes(named)),
    ...runsFound.slice(0, 20).map(runChoice),
    ...said,
    ...(wanted.length >= SHORTEST && role !== "viewer" ? [everywhere] : []),
  ];
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
            aria-label="Page, run, packet id, or words"
            placeholder="Page, run, packet id, or words"
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
              <li key={place} id={`choice-${place}`} role="option" aria-selected={place === index} onClick={() => take(choice)} onMouseMove={() => move(place)}>
                <bdi className={choice.hint === "Packet" ? "mono" : undefined}>{visible(choice.name)}</bdi>
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
