// What every page begins with: its name, a sentence, its acts.

import type { ComponentChildren } from "preact";

export function PageHead({ title, about, children }: { title: ComponentChildren; about?: ComponentChildren; children?: ComponentChildren }) {
  return <header class="page-head">
    <div class="page-title"><h1>{title}</h1>{about && <p class="quiet">{about}</p>}</div>
    {children && <div class="page-acts">{children}</div>}
  </header>;
}
