// The frame around every page: who is in, which outbox, how live it is, and where one can go.

import { effect, useSignalEffect } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import { enterWithCode, me } from "./api/enter.ts";
import { type Problem, ask, problemIn } from "./api/request.ts";
import { ended, secret } from "./api/session.ts";
import type { Me } from "./api/shapes.ts";
import { LoginPage } from "./login.tsx";
import { forgetAll, forgetOutbox, outbox } from "./live/picture.ts";
import { watchOutbox } from "./live/stream.ts";
import { NavBar } from "./nav.tsx";
import { pageNamed } from "./pages/all.tsx";
import { PageHead } from "./pages/page-head.tsx";
import { Dialogs, closeDialog } from "./parts/dialog.tsx";
import { Guard } from "./parts/guard.tsx";
import { ProblemNote } from "./parts/problem-note.tsx";
import { Waiting } from "./parts/rows.tsx";
import { Toasts, toast } from "./parts/toast.tsx";
import { code, goInstead, here } from "./place/here.ts";
import { writePlace } from "./place/place.ts";
import { theme } from "./show/clock.ts";
import { TopBar } from "./top-bar.tsx";

effect(() => {
  const chosen = theme.value;
  if (chosen === "system") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = chosen;
});

export function Frame() {
  const asked = code.value;
  const [why, setWhy] = useState<string | null>(null);
  useEffect(() => {
    if (asked === null) return;
    enterWithCode(asked).then(() => setWhy(null), (error: unknown) => {
      const { status, detail } = problemIn(error);
      const text = status === 401 ? "This link was used already, or is older than five minutes. Take a new one, or a token." : detail;
      // Whoever is in stays in.
      if (secret.peek() === null) setWhy(text);
      else toast(text, "bad");
    }).finally(() => { code.value = null; });
  }, [asked]);
  if (secret.value === null) return asked !== null ? <main class="alone"><Waiting /></main> : <><LoginPage why={why ?? ended.value} /><Toasts /></>;
  return <Inside key={secret.value} />;
}

function Inside() {
  const [problem, setProblem] = useState<Problem | null>(null);
  const look = (): void => {
    setProblem(null);
    ask<Me>("me").then((found) => { me.value = found; }, (error: unknown) => setProblem(problemIn(error)));
  };
  useEffect(() => {
    look();
    return () => {
      me.value = null;
      watchOutbox(null);
      closeDialog();
      forgetAll();
    };
  }, []);
  if (me.value === null) return <main class="alone">{problem ? <ProblemNote problem={problem} again={look} /> : <Waiting />}</main>;
  return me.value.outboxes.length === 0 ? <NoOutbox /> : <Pages who={me.value} />;
}

function NoOutbox() {
  return <main class="alone"><p class="empty">Your token is for no outbox that is here. Ask whoever keeps the file of tokens.</p></main>;
}

function Pages({ who }: { who: Me }) {
  const place = here.value;
  const main = useRef<HTMLElement>(null);
  const isKnown = who.outboxes.includes(place.outbox);
  const first = who.outboxes[0] ?? "";
  useEffect(() => {
    // An address without an outbox means the first one; one of a stranger is named, not replaced.
    if (place.outbox === "") goInstead(writePlace({ ...place, outbox: first }));
  }, [place.outbox]);
  useEffect(() => {
    if (!isKnown) return;
    forgetOutbox();
    watchOutbox(place.outbox);
  }, [place.outbox, isKnown]);
  const page = pageNamed(place.page);
  const title = page?.title ?? "Nothing here";
  useSignalEffect(() => {
    document.title = `${title} · ${outbox.value?.outbox ?? here.value.outbox} · Posthaste`;
  });
  useEffect(() => {
    document.title = `${title} · ${place.outbox} · Posthaste`;
  }, [title, place.outbox]);
  return <div class="frame">
    <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); main.current?.focus(); }}>Skip to the page</a>
    <TopBar who={who} />
    <NavBar />
    <main class="main" id="main" ref={main} tabIndex={-1} data-page={place.page}>
      {place.outbox !== "" && !isKnown
        ? <><PageHead title="No such outbox" /><p class="empty">There is no outbox <b><bdi>{place.outbox}</bdi></b> here, or your token is not for it.</p></>
        : page === undefined
          ? <><PageHead title={title} /><p class="empty">There is no page <b><bdi>{place.page}</bdi></b>.</p></>
          : place.outbox !== "" && <Guard at={writePlace(place)}><page.Page key={`${place.outbox}/${page.name}`} /></Guard>}
    </main>
    <Guard at={writePlace(place)}><Dialogs /></Guard>
    <Toasts />
  </div>;
}
