/** Line icons, 16 px. */
const PATHS = {
  overview: "M2.5 8.5 8 3l5.5 5.5M4 7.5v5.5h8V7.5",
  runs: "M2.5 4h11M2.5 8h11M2.5 12h11M5 4v0M9.5 8v0M7 12v0",
  inbox: "M2.5 9.5 4.5 3h7l2 6.5V13h-11V9.5Zm0 0H6c.3 1 1 1.5 2 1.5s1.7-.5 2-1.5h3.5",
  issues: "M8 2.5 14 13H2ZM8 6.5v3M8 11.3v.2",
  log: "M3.5 2.5h9v11h-9ZM6 5.5h4M6 8h4M6 10.5h2.5",
  copy: "M5.5 5.5h7v7h-7ZM3.5 10.5v-7h7",
  link: "M6.5 9.5l3-3M7 4.5l1.3-1.3a2.8 2.8 0 0 1 4 4L11 8.5M9 11.5l-1.3 1.3a2.8 2.8 0 0 1-4-4L5 7.5",
  done: "M3 8.5l3.5 3.5L13 4.5",
  help: "M5.8 6a2.2 2.2 0 1 1 3.4 1.8c-.8.5-1.2 1-1.2 1.9M8 12v.2",
  agents: "M8 2v2M4 6.5h8v6H4ZM2 9v2M14 9v2M6.5 9v.5M9.5 9v.5",
  chat: "M2.5 3.5h11v7.5H7l-3 2.5V11H2.5Z",
  search: "M7 2.5a4.5 4.5 0 1 0 0 9a4.5 4.5 0 1 0 0-9ZM10.5 10.5l3 3",
  sun: "M8 5.2a2.8 2.8 0 1 0 0 5.6a2.8 2.8 0 1 0 0-5.6ZM8 1.5v1.5M8 13v1.5M1.5 8H3M13 8h1.5M3.4 3.4l1 1M11.6 11.6l1 1M12.6 3.4l-1 1M4.4 11.6l-1 1",
  moon: "M13 9.5A5.5 5.5 0 0 1 6.5 3 5.5 5.5 0 1 0 13 9.5Z",
} as const;

export function Icon({ name }: { name: keyof typeof PATHS }) {
  return (
    <svg width="16" height="16" viewBox="0 0 16 16" fill="none" stroke="currentColor" strokeWidth="1.4" strokeLinecap="round" strokeLinejoin="round" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  );
}
