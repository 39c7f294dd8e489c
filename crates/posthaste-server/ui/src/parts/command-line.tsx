// The command that does the same at a terminal.

import { Icon } from "./icon.tsx";
import { toast } from "./toast.tsx";

export async function copyText(text: string, what: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
    toast(`${what} copied`);
  } catch {
    // Without a secure context there is no clipboard: the text can be selected.
    toast(`${what} could not be copied: this browser allows it on secure pages alone. Select it instead.`, "bad");
  }
}

export function CommandLine({ text }: { text: string }) {
  return <div class="command">
    <span class="command-head">The same at a terminal</span>
    <code tabIndex={0}>{text}</code>
    <button type="button" class="act act-quiet act-small" onClick={() => void copyText(text, "Command")}><Icon name="copy" />Copy<span class="unseen"> the command</span></button>
  </div>;
}
