/** Empty, loading and failed: what a reader sees when there is nothing to show. */
import { useState, type ReactNode } from "react";
import { useQueryClient } from "@tanstack/react-query";
import { api, ApiProblem, problemOf, setToken } from "../api/client";

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

function TokenForm() {
  const client = useQueryClient();
  const [token, change] = useState("");
  return (
    <form
      className="row"
      style={{ justifyContent: "center", marginTop: 10 }}
      onSubmit={(event) => {
        event.preventDefault();
        setToken(token);
        void client.invalidateQueries();
      }}
    >
      <input className="field" type="password" aria-label="Token" placeholder="Token" value={token} onChange={(event) => change(event.target.value)} />
      <button className="button primary" disabled={token.trim() === ""}>
        Use this token
      </button>
    </form>
  );
}

function LoginForm() {
  const client = useQueryClient();
  const [name, changeName] = useState("");
  const [password, changePassword] = useState("");
  const [problem, say] = useState("");
  return (
    <form
      className="login"
      onSubmit={(event) => {
        event.preventDefault();
        say("");
        api.POST("/api/v1/login", { body: { name, password } }).then(
          async ({ response, error }) => {
            if (response.ok) void client.resetQueries();
            else say((await problemOf(response, error)).detail);
          },
          (error: Error) => say(error.message),
        );
      }}
    >
      <label>
        Name
        <input className="field" autoComplete="username" value={name} onChange={(event) => changeName(event.target.value)} required />
      </label>
      <label>
        Password
        <input className="field" type="password" autoComplete="current-password" value={password} onChange={(event) => changePassword(event.target.value)} required />
      </label>
      {problem && <p role="alert" className="notice bad">{problem}</p>}
      <button className="button primary">Log in</button>
    </form>
  );
}

export function Failed({ error, retry }: { error: unknown; retry?: () => void }) {
  const problem = error instanceof ApiProblem ? error : null;
  if (problem?.code === "LOGIN") {
    return (
      <div className="state">
        <strong>Log in</strong>
        <p>This console has accounts. Its operator makes one for you.</p>
        <LoginForm />
      </div>
    );
  }
  if (problem?.code === "NO_ROLE") {
    return (
      <div className="state">
        <strong>Not for your role</strong>
        <p>{problem.detail}.</p>
      </div>
    );
  }
  if (problem?.status === 401) {
    return (
      <div className="state" role="alert">
        <strong>This link is old</strong>
        <p>
          Open the link that <b>apc ui</b> printed when it started, or paste its token.
        </p>
        <TokenForm />
      </div>
    );
  }
  const title = problem?.status === 404 ? "Not found" : problem?.status === 0 ? "The server does not answer" : "This could not be loaded";
  return (
    <div className="state" role="alert">
      <strong>{title}</strong>
      <p>{problem?.detail ?? (error instanceof Error ? error.message : String(error))}</p>
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
