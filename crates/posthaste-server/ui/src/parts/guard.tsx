// What cannot be drawn takes nothing else with it. Whoever goes elsewhere tries anew.

import { Component, type ComponentChildren } from "preact";
import { problemIn } from "../api/request.ts";
import { ProblemNote } from "./problem-note.tsx";

interface GuardProps {
  /** Where the page is. */
  readonly at: string;
  readonly children: ComponentChildren;
}

export class Guard extends Component<GuardProps, { readonly error: unknown }> {
  override state = { error: null };

  override componentDidCatch(error: unknown): void {
    this.setState({ error });
  }

  override componentDidUpdate(before: GuardProps): void {
    if (before.at !== this.props.at && this.state.error !== null) this.setState({ error: null });
  }

  override render() {
    if (this.state.error === null) return this.props.children;
    const { detail } = problemIn(this.state.error);
    return <ProblemNote problem={{ status: 0, code: "page.not_drawn", detail: `This page could not be drawn: ${detail}`, events: "Nothing was changed.", do: "Other pages work." }}
      again={() => this.setState({ error: null })} />;
  }
}
