// Who may do what, and why not. The server decides; this is what it would say, so that a button says it before.

import { me } from "../api/enter.ts";
import { acting, lacks } from "../live/picture.ts";

export type Role = "read" | "operate" | "admin";
const ORDER: readonly Role[] = ["read", "operate", "admin"];

/** Why something may not be done by whoever is in; `null`: it may. */
export function whyNot(role: Role): string | null {
  const who = me.value;
  if (who === null) return "Nobody has entered.";
  if (ORDER.indexOf(who.role) < ORDER.indexOf(role)) {
    return `This needs the role ${role}, and your token has ${who.role}.`;
  }
  return null;
}

/** The same for what changes something in this outbox. */
export function whyNoAct(role: Role, lack?: string): string | null {
  const role_ = whyNot(role);
  if (role_ !== null) return role_;
  const store = lack === undefined ? undefined : lacks.value.get(lack);
  if (store !== undefined) return store;
  if (acting.value === false) {
    return "Nothing can be changed from here: the outbox has no admin_url in this server's configuration.";
  }
  return null;
}

/** Why a look has no keys or contents. */
export const seesKeys = (): boolean => me.value?.payloads !== "hidden";
export const seesPayloads = (): boolean => me.value?.payloads === "shown";
/** The outbox's flag of a command: there where one has to be chosen. */
export const outboxFlag = (name: string): string | null => ((me.value?.outboxes.length ?? 0) > 1 ? name : null);

/** The same for a consumer, whose database may be that of another outbox. */
export function whyNoActOn(role: Role, outboxOfIt: string): string | null {
  const isActing = me.value?.acting.includes(outboxOfIt) ?? false;
  return whyNot(role) ?? (isActing ? null : `Nothing can be changed from here: outbox ${outboxOfIt} has no admin_url in this server's configuration.`);
}
