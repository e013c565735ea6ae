/** Empty, loading and failed: what a reader sees when there is nothing to show. */
import { useQuery } from "@tanstack/react-query";
import type { ReactNode } from "react";
import { ApiProblem } from "../api/client";
import { about } from "../api/queries";
import { sentence } from "../lib/format";
import { Words } from "./bits";

export function Empty({ title, children, command }: { title: string; children?: ReactNode; command?: string }) {
  return (
    <div className="state">
      <strong>{title}</strong>
      {children && <p>{children}</p>}
      {command && <code className="mono">{command}</code>}
    </div>
  );
}

export function Loading({ lines = 5, what }: { lines?: number; what: string }) {
  return (
    <div className="stack" role="status" aria-label={`Loading ${what}`} style={{ padding: 16, gap: 12 }}>
      {Array.from({ length: lines }, (_, index) => (
        <div key={index} className="bone" style={{ width: `${92 - ((index * 29) % 45)}%` }} />
      ))}
    </div>
  );
}

/** A part that the server refused to somebody whom it does not know: the form for all parts is the shell's, as soon as it has asked. */
function Unknown({ retry }: { retry?: () => void }) {
  const { isFetching } = useQuery(about);
  if (isFetching) return <Loading what="the login" lines={3} />;
  return (
    <div className="state" role="alert">
      <strong>You are not logged in</strong>
      {retry && (
        <button className="button" onClick={retry}>
          Try again
        </button>
      )}
    </div>
  );
}

export function Failed({ error, retry }: { error: unknown; retry?: () => void }) {
  const problem = error instanceof ApiProblem ? error : null;
  if (problem?.status === 401) return <Unknown retry={retry} />;
  if (problem?.code === "NO_ROLE") {
    return (
      <div className="state">
        <strong>Not for your role</strong>
        <p><Words>{sentence(problem.detail)}</Words></p>
      </div>
    );
  }
  const title = problem?.status === 404 ? "Not found" : problem?.status === 0 ? "The server does not answer" : "This could not be loaded";
  return (
    <div className="state" role="alert">
      <strong>{title}</strong>
      <p><Words>{sentence(problem?.detail ?? (error instanceof Error ? error.message : String(error)))}</Words></p>
      {retry && (
        <button className="button" onClick={retry} style={{ marginTop: 8 }}>
          Try again
        </button>
      )}
    </div>
  );
}

interface Answer<T> {
  data: T | undefined;
  error: unknown;
  refetch: () => unknown;
}

/** Show the data of a query, or why there is none. A failed refresh keeps the data that is there. */
export function Loaded<T>({ answer, what, lines, children }: { answer: Answer<T>; what: string; lines?: number; children: (data: T) => ReactNode }) {
  if (answer.data !== undefined) return <>{children(answer.data)}</>;
  if (answer.error) return <Failed error={answer.error} retry={() => void answer.refetch()} />;
  return <Loading what={what} lines={lines} />;
}
