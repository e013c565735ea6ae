/** A filter of a list as a field: what is typed comes into the address, which reproduces the list. */
import { useNavigate, useSearch } from "@tanstack/react-router";
import { useEffect, useRef, useState } from "react";

const PAUSE_MS = 300;

interface FilterProps {
  /** The search parameter. */
  name: string;
  label: string;
  placeholder?: string;
  width?: number;
  hasFocus?: boolean;
}

export function useFilters(): [Readonly<Record<string, string | undefined>>, (change: Record<string, string | undefined>) => void] {
  const search = useSearch({ strict: false }) as Record<string, string | undefined>;
  const navigate = useNavigate();
  return [search, (change) => void navigate({ to: ".", search: (old) => ({ ...old, ...change }), replace: true, resetScroll: false })];
}

export function FilterField({ name, label, placeholder, width = 130, hasFocus = false }: FilterProps) {
  const [search, change] = useFilters();
  const given = search[name] ?? "";
  const [text, type] = useState(given);
  const sent = useRef(given);
  const latest = useRef(change);
  latest.current = change;
  useEffect(() => {
    if (given === sent.current) return; // the address changed by itself: a link, the way back
    sent.current = given;
    type(given);
  }, [given]);
  useEffect(() => {
    const next = text.trim();
    if (next === sent.current) return;
    const timer = setTimeout(() => {
      sent.current = next;
      latest.current({ [name]: next || undefined });
    }, PAUSE_MS);
    return () => clearTimeout(timer);
  }, [text, name]);
  return <input className="field" type="search" aria-label={label} placeholder={placeholder ?? label} value={text} maxLength={200} autoFocus={hasFocus} style={{ width, maxWidth: "100%", flex: "0 1 auto" }} onChange={(event) => type(event.target.value)} />;
}
