// What a consumer's process says of itself. Its shape is not fixed: what is not known is left out. Pure.

export interface ConsumerReport {
  readonly ready: boolean;
  /** Why it is or is not. */
  readonly why: string;
  readonly error: string | null;
  readonly lastError: string | null;
  /** Dependencies whose breaker is open. */
  readonly away: readonly string[];
  /** From the producer to the end of the handler. */
  readonly p50Ms: number | null;
  readonly p99Ms: number | null;
}

/** `null`: it is of another shape, and so of another version. */
export function readReport(report: unknown): ConsumerReport | null {
  if (typeof report !== "object" || report === null) return null;
  const all = report as Record<string, unknown>;
  const ready = all["ready"];
  if (typeof ready !== "boolean") return null;
  const text = (name: string): string | null => (typeof all[name] === "string" && all[name] !== "" ? (all[name] as string) : null);
  const away = Array.isArray(all["unavailable"]) ? all["unavailable"].filter((name): name is string => typeof name === "string") : [];
  const latency = all["latency"] as Record<string, unknown> | null | undefined;
  const late = (name: string): number | null => (typeof latency?.[name] === "number" ? latency[name] : null);
  return {
    ready, why: text("why") ?? "", error: text("error"), lastError: text("last_error"), away,
    p50Ms: late("p50_ms"), p99Ms: late("p99_ms"),
  };
}
