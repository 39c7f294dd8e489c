// A list as a table: rows that keys move through, that can be selected and opened.
//
// On a narrow screen each row is a card, and each cell has its column's name. The roles are written out,
// because a browser forgets them when a table is drawn as something else. Nothing in a cell is clipped or placed
// absolutely: a browser keeps a layer for each, and a thousand rows of them scroll in jerks.

import { useComputed } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { number } from "../show/number.ts";
import type { Pages } from "./look.ts";
import { ProblemNote } from "./problem-note.tsx";
import type { Selection } from "./selection.ts";

export interface Column<R> {
  readonly head: string;
  readonly cell: (row: R) => ComponentChildren;
  /** `num`: to the right; `main`: takes what is left; `fit`: as narrow as can be; `acts`: buttons. */
  readonly as?: "num" | "main" | "fit" | "acts" | "wide";
}

interface RowsProps<R> {
  readonly caption: string;
  readonly columns: readonly Column<R>[];
  readonly rows: readonly R[];
  readonly keyOf: (row: R) => string;
  readonly open?: (row: R) => string;
  readonly selection?: Selection<R>;
  readonly nameOf?: (row: R) => string;
  readonly empty?: ComponentChildren;
  readonly isAsking?: boolean;
}

export function Rows<R>({ caption, columns, rows, keyOf, open, selection, nameOf, empty, isAsking }: RowsProps<R>) {
  if (rows.length === 0) {
    return isAsking ? <Waiting /> : <p class="empty">{empty ?? "Nothing here."}</p>;
  }
  return <table class="rows" role="table">
    <caption class="unseen">{caption}</caption>
    <thead role="rowgroup"><tr role="row">
      {selection && <th role="columnheader" class="col-pick"><PickAll selection={selection} all={rows.map((row) => [keyOf(row), row])} /></th>}
      {columns.map((column) => <th key={column.head} role="columnheader" scope="col" class={`col-${column.as ?? "text"}`}>
        {column.as === "acts" ? <span class="unseen">{column.head}</span> : column.head}
      </th>)}
    </tr></thead>
    <tbody role="rowgroup">
      {rows.map((row) => <Row key={keyOf(row)} row={row} columns={columns} keyOf={keyOf} open={open} selection={selection} nameOf={nameOf} />)}
    </tbody>
  </table>;
}

type RowProps<R> = Pick<RowsProps<R>, "columns" | "keyOf" | "open" | "selection" | "nameOf"> & { row: R };

function Row<R>({ row, columns, keyOf, open, selection, nameOf }: RowProps<R>) {
  const key = keyOf(row);
  const isPicked = useComputed(() => selection?.value.has(key) ?? false);
  const look = useComputed(() => (isPicked.value ? "row picked" : "row"));
  const to = open?.(row);
  const press = (event: MouseEvent): void => {
    const on = event.target instanceof Element ? event.target.closest("a, button, input, label, summary") : null;
    if (on === null && to !== undefined && (getSelection()?.isCollapsed ?? true)) location.hash = to;
  };
  return <tr role="row" class={look} data-row tabIndex={-1} data-to={to} onClick={to === undefined ? undefined : press}>
    {selection && <td role="cell" class="col-pick">
      <label class="pick"><input type="checkbox" aria-label={`Select ${nameOf?.(row) ?? key}`} checked={isPicked} onChange={() => toggle(selection, key, row)} /></label>
    </td>}
    {columns.map((column) => <td key={column.head} role="cell" class={`col-${column.as ?? "text"}`} data-head={column.as === "acts" ? undefined : column.head}>
      {column.cell(row)}
    </td>)}
  </tr>;
}

function toggle<R>(selection: Selection<R>, key: string, row: R): void {
  const next = new Map(selection.peek());
  if (!next.delete(key)) next.set(key, row);
  selection.value = next;
}

function PickAll<R>({ selection, all }: { selection: Selection<R>; all: readonly (readonly [string, R])[] }) {
  const isAll = all.every(([key]) => selection.value.has(key));
  return <label class="pick"><input type="checkbox" aria-label={`Select all ${number(all.length)} rows that are shown`} checked={isAll}
    onChange={() => { selection.value = new Map(isAll ? [] : all); }} /></label>;
}

export function Waiting() {
  return <p class="waiting" role="status"><span class="spin" aria-hidden="true" />Looking…</p>;
}

/** What stands below a list that has more. */
export function MoreRows<T, R>({ pages, what }: { pages: Pages<T, R>; what: string }) {
  return <>
    {pages.problem && <ProblemNote problem={pages.problem} again={pages.again} />}
    {pages.rows.length > 0 && <p class="more">
      <span class="quiet">{number(pages.rows.length)} {what} shown{pages.hasMore ? "" : ", and no more"}</span>
      {pages.hasMore && <button type="button" class="act act-plain act-small" data-act="more" onClick={pages.more}>{pages.isAsking ? "Looking…" : "Show more"}</button>}
    </p>}
  </>;
}
