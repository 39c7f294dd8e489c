// Entering with a token. The address stays as it is, so that whoever enters is where they wanted to be.

import { useState } from "preact/hooks";
import { enterWithToken } from "./api/enter.ts";
import { problemIn } from "./api/request.ts";
import { Field } from "./acts/fields.tsx";
import { Icon } from "./parts/icon.tsx";
import { Logo } from "./parts/logo.tsx";

export function LoginPage({ why }: { why: string | null }) {
  const [token, setToken] = useState("");
  const [wrong, setWrong] = useState<string | null>(null);
  const [isAsking, setAsking] = useState(false);
  const enter = (event: Event): void => {
    event.preventDefault();
    if (token.trim() === "") return setWrong("Paste a token first.");
    setAsking(true);
    setWrong(null);
    enterWithToken(token.trim()).catch((error: unknown) => {
      const problem = problemIn(error);
      setAsking(false);
      setWrong(problem.status === 401 ? "This token is none, or its time is over." : `${problem.detail} ${problem.do}`);
    });
  };
  return <main class="login">
    <form class="login-card" onSubmit={enter}>
      <h1 class="login-title"><Logo />Posthaste</h1>
      {why && <p class="note note-quiet" role="status"><Icon name="clock" /><span class="note-text">{why}</span></p>}
      <Field label="Token" wrong={wrong} hint={<>One that <code class="code">posthaste token new</code> printed.</>}>
        {(ids) => <input {...ids} class="input mono" type="password" name="token" autofocus autocomplete="off" spellcheck={false}
          placeholder="pht_…" value={token} onInput={(event) => setToken(event.currentTarget.value)} />}
      </Field>
      <button type="submit" class="act act-primary" disabled={isAsking}>{isAsking ? "Entering…" : "Enter"}</button>
      <p class="hint">Or open the link that <code class="code">posthaste ui</code> prints. The session is kept for this tab alone.</p>
    </form>
  </main>;
}
