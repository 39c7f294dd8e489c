// An act that takes a reason and nothing else, as pausing a job.

import type { ComponentChildren } from "preact";
import type { Ask } from "../api/request.ts";
import { CommandLine } from "../parts/command-line.tsx";
import { Dialog, openDialog } from "../parts/dialog.tsx";
import { toast } from "../parts/toast.tsx";
import { useSending } from "./sending.tsx";

export interface OrderAsk {
  readonly title: string;
  readonly means: ComponentChildren;
  readonly button: string;
  readonly danger?: boolean;
  readonly where: string;
  readonly method: NonNullable<Ask["method"]>;
  readonly body: object;
  readonly command: (reason: string) => string;
  readonly done: string;
  readonly onDone?: () => void;
}

export function askForOrder(wanted: OrderAsk): void {
  openDialog(<OrderDialog {...wanted} />);
}

function OrderDialog({ title, means, button, danger = false, where, method, body, command, done, onDone }: OrderAsk) {
  const { reason, isSending, note, field, send } = useSending();
  const go = (): void => send(true, where, { method, body }, () => { toast(done); onDone?.(); });
  return <Dialog title={title} onSubmit={go} foot={<button type="submit" class={danger ? "act act-danger" : "act act-primary"} disabled={isSending}>{button}</button>}>
    <p class={danger ? "means means-danger" : "means"}>{means}</p>
    {note}
    <div class="fields">{field(true)}</div>
    <CommandLine text={command(reason)} />
  </Dialog>;
}
