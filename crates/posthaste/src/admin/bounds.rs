//! Bounds of looking and acting: the same on every store (G7).

/// Rows of one page or chunk, at most: what one statement or transaction holds.
pub const ROWS_MAX: i64 = 10_000;

/// Dead rows whose causes are made out at reading, the newest: their errors pass through the memory of the
/// process that looks.
pub const LOOKED_MAX: i64 = 10_000;

/// Ids named in a line of the audit, at most.
pub const IDS_AUDITED: usize = 100;

/// Ids named in a filter, at most: a job's plan is read back and written down with every look at it.
pub const IDS_NAMED_MAX: usize = 1_000;

/// Topics named in a line of the audit, at most.
pub const TOPICS_AUDITED: usize = 10;

/// Events of a replay that are shown, at most.
pub const SAMPLES: usize = 5;

/// Most lanes: each has a few slots, and a cursor that settles by itself.
pub const LANES_MAX: u16 = 256;

/// How far times of the log may go back while numbers go up. Number and time of a row are drawn within
/// microseconds; what is covered here is a clock that is set.
pub const DISORDER_MICROS: i64 = 60_000_000;
