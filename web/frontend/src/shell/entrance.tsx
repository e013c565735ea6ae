/** What stands in place of every page for somebody whom the server does not know: one form, and why it is there. */
import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { api, ApiProblem, problemOf } from "../api/client";
import { setToken } from "../api/token";
import { Failed } from "../parts/states";

function TokenForm() {
  const client = useQueryClient();
  const [token, change] = useState("");
  return (
    <form
      className="login"
      onSubmit={(event) => {
        event.preventDefault();
        setToken(token);
        void client.resetQueries();
      }}
    >
      <label>
        Token
        <input className="field" type="password" autoComplete="off" value={token} onChange={(event) => change(event.target.value)} />
      </label>
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
  const [isAsking, ask] = useState(false);
  return (
    <form
      className="login"
      onSubmit={(event) => {
        event.preventDefault();
        say("");
        ask(true);
        api
          .POST("/api/v1/login", { body: { name, password } })
          .then(async ({ response, error }) => {
            if (response.ok) await client.resetQueries();
            else say((await problemOf(response, error)).detail);
          })
          .catch((error: Error) => say(error.message))
          .finally(() => ask(false));
      }}
    >
      <label>
        Name
        <input className="field" autoComplete="username" autoCapitalize="none" spellCheck={false} value={name} onChange={(event) => changeName(event.target.value)} required />
      </label>
      <label>
        Password
        <input className="field" type="password" autoComplete="current-password" value={password} onChange={(event) => changePassword(event.target.value)} required />
      </label>
      {problem && <p role="alert" className="notice bad">{problem}</p>}
      <button className="button primary" disabled={isAsking}>
        {isAsking ? "Logging in…" : "Log in"}
      </button>
    </form>
  );
}

/** The login, the form for a token, or that the server is away. */
export function Entrance({ error }: { error: ApiProblem }) {
  if (error.code === "LOGIN") {
    return (
      <div className="state">
        <strong>Log in</strong>
        <p>This console has accounts. Its operator makes one for you.</p>
        <LoginForm />
      </div>
    );
  }
  if (error.status !== 401) return <Failed error={error} />;
  return (
    <div className="state" role="alert">
      <strong>This link is old</strong>
      <p>
        Its token was replaced, or belongs to another data folder. Open the link that <b>apc ui</b> printed, or paste its token.
      </p>
      <TokenForm />
    </div>
  );
}
