// Dialogs: the browser's own element holds the focus inside and gives it back.

import { signal } from "@preact/signals";
import type { ComponentChildren, VNode } from "preact";
import { useEffect, useRef } from "preact/hooks";

const shown = signal<VNode | null>(null);

export function openDialog(dialog: VNode): void {
  shown.value = dialog;
}

export function closeDialog(): void {
  shown.value = null;
}

/** Closes the dialog that is open now, and none that is opened after it. */
export function closerOf(): () => void {
  const mine = shown.peek();
  return () => { if (shown.peek() === mine) closeDialog(); };
}

/** How many acts were sent from here: a list that shows what they touch looks again. */
export const acted = signal(0);

// A link that is followed, or the back key, leaves the dialog behind.
addEventListener("hashchange", closeDialog);

/** Where the open dialog is drawn. */
export function Dialogs() {
  return shown.value;
}

interface DialogProps {
  readonly title: string;
  readonly children: ComponentChildren;
  /** Buttons; one that closes is there already. */
  readonly foot?: ComponentChildren;
  readonly closes?: string;
  readonly onSubmit?: () => void;
}

export function Dialog({ title, children, foot, closes = "Cancel", onSubmit }: DialogProps) {
  const element = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const dialog = element.current;
    const before = document.activeElement;
    dialog?.showModal();
    return () => {
      dialog?.close();
      if (before instanceof HTMLElement && before.isConnected) before.focus({ preventScroll: true });
    };
  }, []);
  const submit = (event: Event): void => {
    event.preventDefault();
    onSubmit?.();
  };
  return <dialog ref={element} class="dialog" aria-labelledby="dialog-title"
    onCancel={(event) => { event.preventDefault(); closeDialog(); }}
    onClick={(event) => { if (event.target === element.current) closeDialog(); }}>
    <form class="dialog-body" method="dialog" onSubmit={submit}>
      <h2 id="dialog-title">{title}</h2>
      <div class="dialog-parts">{children}</div>
      <div class="dialog-foot">
        <button type="button" class="act act-plain" onClick={closeDialog}>{closes}</button>
        {foot}
      </div>
    </form>
  </dialog>;
}
