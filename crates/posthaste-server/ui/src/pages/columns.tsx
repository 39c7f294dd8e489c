// Columns that several lists have.

import type { Maybe } from "../api/shapes.ts";
import type { Column } from "../parts/rows.tsx";
import { Code, Said } from "../parts/said.tsx";
import { When } from "../parts/when.tsx";
import { number } from "../show/number.ts";
import { Reason } from "./reasons.tsx";

export const NONE = <span class="quiet">none</span>;

export const keyColumn: Column<{ key?: Maybe<string> }> = { head: "Key", cell: ({ key }) => (key == null ? NONE : <Said text={key} most={60} />) };

export const attemptsColumn: Column<{ attempts: number }> = { head: "Attempts", as: "num", cell: ({ attempts }) => number(attempts) };

export const dueColumn: Column<{ due_at?: Maybe<string> }> = { head: "Due", as: "fit", cell: ({ due_at: at }) => (at == null ? <span class="quiet">behind its key</span> : <When at={at} />) };

export const reasonColumn: Column<{ reason: string }> = { head: "Waits for", as: "fit", cell: ({ reason }) => <Reason reason={reason} /> };

export const bigCount = (head: string): Column<{ count: number }> => ({ head, as: "num", cell: ({ count }) => <strong class="big-num">{number(count)}</strong> });

export const firstColumn: Column<{ first_at: string }> = { head: "First", as: "fit", cell: ({ first_at: at }) => <When at={at} /> };
export const lastColumn: Column<{ last_at: string }> = { head: "Last", as: "fit", cell: ({ last_at: at }) => <When at={at} /> };
export const oldestColumn: Column<{ oldest_at: string }> = { head: "Oldest", as: "fit", cell: ({ oldest_at: at }) => <When at={at} /> };
export const diedColumn: Column<{ dead_at: string }> = { head: "Died", as: "fit", cell: ({ dead_at: at }) => <When at={at} /> };

interface Failed {
  readonly error_code?: Maybe<string>;
  readonly error?: Maybe<string>;
  readonly last_error?: Maybe<string>;
}

export const errorColumn: Column<Failed> = {
  head: "Error", as: "main",
  cell: ({ error_code: code, error, last_error: last }) => {
    const text = error ?? last;
    return code == null ? NONE : <><Code text={code} /> {text != null && <Said text={text} most={160} />}</>;
  },
};

/** Where a consumer's message came from. */
export const fromColumn: Column<{ topic: string; partition: number; position?: Maybe<number> }> = {
  head: "From", as: "wide",
  cell: ({ topic, partition, position }) => <><Said text={topic} most={60} />/{partition}{position != null && <span class="quiet">@{number(position)}</span>}</>,
};
