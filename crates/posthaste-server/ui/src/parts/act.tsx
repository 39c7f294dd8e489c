// A button that does something. One that may not be used stays where it is, can be reached, and says why.

import type { ComponentChildren } from "preact";
import { toast } from "./toast.tsx";

export interface ActProps {
  readonly onPress: () => void;
  /** Why it may not be used now; `null`: it may. */
  readonly why?: string | null;
  readonly kind?: "plain" | "primary" | "danger" | "quiet" | "link";
  readonly small?: boolean;
  /** Its name for keys, as `replay` for `r`. */
  readonly act?: string;
  readonly label?: string;
  readonly children: ComponentChildren;
}

export function Act({ onPress, why = null, kind = "plain", small = false, act, label, children }: ActProps) {
  const press = (event: MouseEvent): void => {
    event.stopPropagation();
    if (why === null) onPress();
    else toast(why, "quiet");
  };
  return <button
    type="button" class={`act act-${kind}${small ? " act-small" : ""}`} onClick={press} data-act={act}
    aria-disabled={why === null ? undefined : "true"} title={why ?? undefined} aria-label={label}
  >{children}{why !== null && <span class="unseen"> ({why})</span>}</button>;
}
