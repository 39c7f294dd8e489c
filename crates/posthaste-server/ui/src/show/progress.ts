// How far a job is. Pure.
//
// Where the look before a job did not count all, its total is a lower bound: the job may go beyond it.

interface Looked {
  readonly done: number;
  readonly left_alone: number;
  readonly total: number;
}

interface Progress {
  readonly looked: number;
  /** How many there will be; `null`: nobody has counted them. */
  readonly total: number | null;
  readonly left: number | null;
}

export function progressOf({ done, left_alone: alone, total }: Looked): Progress {
  const looked = done + alone;
  return looked > total ? { looked, total: null, left: null } : { looked, total, left: total - looked };
}
