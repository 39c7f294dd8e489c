// Small drawings. Each stands beside a word: nothing is said by a drawing or a colour alone.

const DRAWN = {
  ok: "M3.5 8.5l3 3 6-7",
  warn: "M8 2.5L14 13H2L8 2.5zM8 6.5v3M8 11.3v.2",
  bad: "M4 4l8 8M12 4l-8 8",
  pause: "M5.5 3.5v9M10.5 3.5v9",
  play: "M5 3.5v9l7-4.5-7-4.5z",
  clock: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM8 5v3.2l2.2 1.4",
  again: "M13 8a5 5 0 1 1-1.6-3.7M13 2.5V5h-2.5",
  copy: "M5.5 5.5V3h7.5v7.5h-2.5M3 5.5h7.5V13H3z",
  down: "M4 6l4 4 4-4",
  search: "M7 12A5 5 0 1 0 7 2a5 5 0 0 0 0 10zM10.8 10.8L14 14",
  empty: "M8 13.5a5.5 5.5 0 1 0 0-11 5.5 5.5 0 0 0 0 11z",
  overview: "M2.5 9.5l3-4 3 5 2-3.5h3",
  dead: "M3 3.5h10v9H3zM5.8 6l4.4 4M10.2 6l-4.4 4",
  deferred: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM8 4.5V8l2.5 1.5",
  events: "M3 4h10M3 8h10M3 12h6",
  lanes: "M3 3v10M8 3v10M13 3v10M3 6h5M8 10h5",
  jobs: "M3 4.5h10v3H3zM3 10h6.5",
  consumers: "M2.5 8h7M7 5l3 3-3 3M12 3v10",
  audit: "M4 2.5h8v11H4zM6 5.5h4M6 8h4M6 10.5h2.5",
  settings: "M3 5h6M12 5h1M3 11h1M7 11h6M10.5 3.5v3M5.5 9.5v3",
} as const;

export type IconName = keyof typeof DRAWN;

export function Icon({ name, size = 14 }: { name: IconName; size?: number }) {
  return <svg class={`icon icon-${name}`} width={size} height={size} viewBox="0 0 16 16" aria-hidden="true" focusable="false">
    <path d={DRAWN[name]} />
  </svg>;
}
