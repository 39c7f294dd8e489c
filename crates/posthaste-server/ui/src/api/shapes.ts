// Answers of the API, under the names that its own document gives them. `npm run types` makes them.

import type { components } from "./api.d.ts";

type Schemas = components["schemas"];

export type Maybe<T> = T | null | undefined;
export type Count = Schemas["Count"];
export type Me = Schemas["Me"];
export type SetBy = Schemas["SetBy"];
export type DeferredCause = Schemas["DeferredCause"];
export type LaneStatus = Schemas["LaneStatus"];
export type SinkStatus = Schemas["SinkStatus"];
export type OutOfReach = Schemas["OutOfReach"];
export type SinkReport = Schemas["SinkReport"];
export type RelayReport = Schemas["RelayReport"];
export type Said = Schemas["Said"];
export type RelayProcess = Schemas["RelayProcess"];
export type SegmentStatus = Schemas["SegmentStatus"];
export type Named = Schemas["Named"];
export type Picture = Schemas["Picture"];
export type Lack = Schemas["Lack"];
export type ShownOutbox = Schemas["ShownOutbox"];
export type Attempt = Schemas["Attempt"];
export type DeadLetter = Schemas["DeadLetter"];
export type DeadCause = Schemas["DeadCause"];
export type DeadCauses = Schemas["DeadCauses"];
export type Dead = Schemas["Dead"];
export type DeferredEvent = Schemas["DeferredEvent"];
export type DeferredPage = Schemas["DeferredPage"];
export type LogEvent = Schemas["LogEvent"];
export type Events = Schemas["Events"];
export type PassedAt = Schemas["PassedAt"];
export type Waiting = Schemas["Waiting"];
export type SinkLife = Schemas["SinkLife"];
export type Acted = Schemas["Acted"];
export type ShownLife = Schemas["ShownLife"];
export type Preview = Schemas["Preview"];
export type JobStatus = Schemas["JobStatus"];
export type Jobs = Schemas["Jobs"];
export type TrailLine = Schemas["TrailLine"];
export type Trail = Schemas["Trail"];
export type ShownSetting = Schemas["ShownSetting"];
export type ShownTuning = Schemas["ShownTuning"];
export type Finding = Schemas["Finding"];
export type Examined = Schemas["Examined"];
export type LetterCause = Schemas["LetterCause"];
export type ConsumerLetter = Schemas["ConsumerLetter"];
export type MessageCause = Schemas["MessageCause"];
export type DeferredMessage = Schemas["DeferredMessage"];
/** What is wrong with an outbox. */
export type Trouble = Schemas["Problem"];

export type ShownPartition = Schemas["ShownPartition"];
export type ConsumerProcess = Schemas["ConsumerProcess"];
export type ShownConsumer = Schemas["ShownConsumer"];
export type Consumers = Schemas["Consumers"];

export type Gateway = Schemas["ShownGateway"];
export type Tenant = Schemas["ShownTenant"];

/** Of the stream and of `…/series`. */
export type Figures = Record<"in_per_s" | "out_per_s" | "backlog" | "oldest_s" | "p50_ms" | "p99_ms" | "deferred" | "dead", (number | null)[]>;
export interface Series {
  step_ms: number;
  from: string;
  sinks: Record<string, Partial<Figures>>;
}
export interface Point {
  at: string;
  sinks: Record<string, Partial<Record<keyof Figures, number | null>>>;
}
