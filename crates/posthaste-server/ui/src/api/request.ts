// Asks the API. Addresses are relative to the page, wherever a proxy puts it.

import { endSession, secret } from "./session.ts";

/** Why something was not answered, as `application/problem+json` says it. */
export interface Problem {
  readonly status: number;
  readonly code: string;
  readonly detail: string;
  /** What it means for the events. */
  readonly events: string;
  /** What to do. */
  readonly do: string;
}

export class Refused extends Error {
  constructor(readonly problem: Problem) {
    super(problem.detail);
  }
}

export function apiAddress(path: string): string {
  return new URL(`api/v1/${path.replace(/^\//, "")}`, document.baseURI).href;
}

/** A path of names: each is one part, whatever is in it. */
export function path(parts: TemplateStringsArray, ...names: readonly (string | number)[]): string {
  return parts.reduce((text, part, index) => text + encodeURIComponent(String(names[index - 1])) + part);
}

export function query(filters: object): string {
  const said = new URLSearchParams();
  for (const [name, value] of Object.entries(filters) as [string, unknown][]) {
    if (value != null && value !== "" && value !== false) said.set(name, String(value));
  }
  const text = said.toString();
  return text === "" ? "" : `?${text}`;
}

export interface Ask {
  readonly method?: "GET" | "POST" | "PUT" | "DELETE";
  readonly body?: unknown;
  readonly signal?: AbortSignal;
  readonly idempotencyKey?: string;
  /** Sent instead of the session; `null`: nothing. */
  readonly bearer?: string | null;
}

/** The answer itself, for streams and files. */
export async function fetchAnswer(where: string, ask: Ask = {}): Promise<Response> {
  const headers: Record<string, string> = {};
  const bearer = ask.bearer === undefined ? secret.peek() : ask.bearer;
  if (bearer !== null) headers["Authorization"] = `Bearer ${bearer}`;
  if (ask.body !== undefined) headers["Content-Type"] = "application/json";
  if (ask.idempotencyKey !== undefined) headers["Idempotency-Key"] = ask.idempotencyKey;
  let answer: Response;
  try {
    answer = await fetch(apiAddress(where), {
      method: ask.method ?? "GET", headers, cache: "no-store", credentials: "omit", redirect: "error",
      ...(ask.body === undefined ? {} : { body: JSON.stringify(ask.body) }),
      ...(ask.signal === undefined ? {} : { signal: ask.signal }),
    });
  } catch (error) {
    if (ask.signal?.aborted) throw error;
    const isAct = ask.method !== undefined && ask.method !== "GET";
    throw new Refused({
      status: 0, code: "page.no_answer", detail: "The server did not answer.",
      events: isAct ? "It is not known whether anything was changed." : "Nothing was changed.",
      do: "Check that it runs and that this browser reaches it. The page tries again by itself.",
    });
  }
  if (answer.ok) return answer;
  const problem = await problemOf(answer);
  if (answer.status === 401 && bearer !== null && bearer === secret.peek()) {
    endSession("Your session has ended, or its token was taken back. Enter again to go on where you were.");
  }
  throw new Refused(problem);
}

async function problemOf(answer: Response): Promise<Problem> {
  let said: Partial<Record<keyof Problem, unknown>> = {};
  try {
    const body: unknown = JSON.parse(await answer.text());
    if (typeof body === "object" && body !== null) said = body;
  } catch {
    // A proxy answers in words of its own.
  }
  const text = (value: unknown, otherwise: string): string => (typeof value === "string" ? value : otherwise);
  return {
    status: answer.status,
    code: text(said.code, `http.${answer.status}`),
    detail: text(said.detail, `The server answered ${answer.status}.`),
    events: text(said.events, ""),
    do: text(said.do, ""),
  };
}

export async function ask<T>(where: string, how: Ask = {}): Promise<T> {
  const answer = await fetchAnswer(where, how);
  return (await answer.json()) as T;
}

/** A random key: the same request sent twice is one act. Works without a secure context, too. */
export function idempotencyKey(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function problemIn(error: unknown): Problem {
  if (error instanceof Refused) return error.problem;
  const detail = error instanceof Error ? error.message : String(error);
  return { status: 0, code: "page.failed", detail, events: "Nothing was changed.", do: "Reload the page." };
}
