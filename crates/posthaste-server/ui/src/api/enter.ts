// Entering and leaving.

import { signal } from "@preact/signals";
import { ask } from "./request.ts";
import { endSession, ended, keep } from "./session.ts";
import type { Me } from "./shapes.ts";

/** Who is in, and what they may. */
export const me = signal<Me | null>(null);

/** What is in the hand is sent and not kept: only a session is. */
async function open(bearer: string | null, body: object): Promise<void> {
  const { session } = await ask<{ session: string }>("session", { method: "POST", body, bearer });
  keep(session);
  ended.value = null;
}

export const enterWithToken = (token: string): Promise<void> => open(token, {});
export const enterWithCode = (code: string): Promise<void> => open(null, { code });

export async function leave(): Promise<void> {
  try {
    await ask("session", { method: "DELETE" });
  } catch {
    // Whoever leaves is out, whether or not the server heard of it.
  }
  me.value = null;
  endSession(null);
}
