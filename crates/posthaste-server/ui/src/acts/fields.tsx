// What dialogs ask for: a reason, a rate, an end.

import type { ComponentChildren } from "preact";
import { useId } from "preact/hooks";

interface FieldProps {
  readonly label: string;
  readonly hint?: ComponentChildren;
  readonly wrong?: string | null;
  readonly children: (ids: { readonly id: string; readonly "aria-describedby": string; readonly "aria-invalid": boolean }) => ComponentChildren;
}

export function Field({ label, hint, wrong, children }: FieldProps) {
  const id = useId();
  return <div class="field">
    <label for={id}>{label}</label>
    {children({ id, "aria-describedby": `${id}-hint`, "aria-invalid": Boolean(wrong) })}
    <span id={`${id}-hint`} class={wrong ? "hint hint-bad" : "hint"}>{wrong || hint}</span>
  </div>;
}

interface TextProps {
  readonly label: string;
  readonly value: string;
  readonly onText: (text: string) => void;
  readonly hint?: ComponentChildren;
  readonly wrong?: string | null;
  readonly short?: boolean;
  readonly placeholder?: string;
  readonly first?: boolean;
  readonly name?: string;
}

export function TextField({ label, value, onText, hint, wrong, short = false, placeholder, first = false, name }: TextProps) {
  return <Field label={label} hint={hint} wrong={wrong ?? null}>
    {(ids) => <input {...ids} type="text" class={short ? "input input-short" : "input"} value={value} name={name}
      placeholder={placeholder} autofocus={first} autocomplete="off" spellcheck={false} onInput={(event) => onText(event.currentTarget.value)} />}
  </Field>;
}

export function ReasonField({ value, onText, wrong, first }: { value: string; onText: (text: string) => void; wrong?: string | null; first?: boolean }) {
  return <TextField label="Reason" name="reason" value={value} onText={onText} wrong={wrong ?? null} first={first ?? false}
    hint="It stands in the audit, with your name." placeholder="Why, in a few words" />;
}
