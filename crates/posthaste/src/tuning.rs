//! Tuning: a few settings of `[relay]` that an operator lays over the file's for a while. Pure.
//!
//! Each setting is a row of its own, with who set it, why, since when and until when. So one operator's act
//! leaves another's as it is, and each ends by itself. A value stays within a tenth and ten times of the
//! file's: what needs more than that is no tuning, it belongs into the file. Whatever is stored is judged
//! again by every relay with its own file: a row that is no number, that another version wrote, or that does
//! not fit is told and passed over, and never hurts a relay.
//!
//! Refused: one row with all settings. Whoever set one of them would take over the name, the reason and the
//! end of the others.

use crate::admin::{AdminCode, AdminError, SetBy};
use crate::event::Timestamp;
use crate::relay::RelaySettings;
use serde::Serialize;
use serde_json::{Value, json};
use std::time::Duration;

/// How far from the file's value a tuned one may be, upwards and downwards.
const FACTOR: u64 = 10;

/// The furthest end of what ends by itself. What is to hold for longer is no act of an evening.
const ENDS_WITHIN: Duration = Duration::from_secs(30 * 86_400);

/// A setting that can be tuned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tunable {
    /// `poll_min_ms`.
    PollMin,
    /// `poll_max_ms`.
    PollMax,
    /// `page_events_max`.
    PageEvents,
    /// `due_events_max`.
    DueEvents,
    /// `settle_interval_ms`.
    SettleInterval,
}

impl Tunable {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::PollMin, Self::PollMax, Self::PageEvents, Self::DueEvents, Self::SettleInterval];

    /// Its name in `[relay]`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::PollMin => "poll_min_ms",
            Self::PollMax => "poll_max_ms",
            Self::PageEvents => "page_events_max",
            Self::DueEvents => "due_events_max",
            Self::SettleInterval => "settle_interval_ms",
        }
    }

    /// The one of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name)
    }

    /// Its value.
    #[must_use]
    pub fn of(self, settings: &RelaySettings) -> u64 {
        match self {
            Self::PollMin => settings.poll_min_ms,
            Self::PollMax => settings.poll_max_ms,
            Self::PageEvents => settings.page_events_max as u64,
            Self::DueEvents => settings.due_events_max as u64,
            Self::SettleInterval => settings.settle_interval_ms,
        }
    }

    fn set(self, settings: &mut RelaySettings, value: u64) {
        let events = || usize::try_from(value).unwrap_or(usize::MAX);
        match self {
            Self::PollMin => settings.poll_min_ms = value,
            Self::PollMax => settings.poll_max_ms = value,
            Self::PageEvents => settings.page_events_max = events(),
            Self::DueEvents => settings.due_events_max = events(),
            Self::SettleInterval => settings.settle_interval_ms = value,
        }
    }

    /// The least and the most that it may be tuned to.
    #[must_use]
    pub fn bounds(self, file: &RelaySettings) -> (u64, u64) {
        let value = self.of(file);
        (value.div_ceil(FACTOR), value.saturating_mul(FACTOR))
    }

    fn check(self, file: &RelaySettings, value: u64) -> Result<(), String> {
        let (least, most) = self.bounds(file);
        if (least..=most).contains(&value) {
            return Ok(());
        }
        Err(format!(
            "{} {value} is not between {least} and {most}: a tenth and ten times of the file's {}",
            self.name(),
            self.of(file)
        ))
    }
}

/// A tuned setting, as it is stored.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Tuned {
    /// Which; perhaps one that only another version knows.
    pub setting: String,
    /// Its value; a number, unless somebody wrote it by hand.
    pub value: Value,
    /// Who set it, and why.
    pub set_by: Option<SetBy>,
}

/// The settings in force.
#[derive(Debug, Clone, PartialEq)]
pub struct InForce {
    /// The file's, with what is laid over them.
    pub settings: RelaySettings,
    /// What is.
    pub tuned: Vec<(Tunable, Option<SetBy>)>,
    /// What is stored and passed over, and why: a sentence each.
    pub ignored: Vec<String>,
}

impl InForce {
    /// The file's settings with these laid over them, as far as they fit.
    #[must_use]
    pub fn new(file: &RelaySettings, stored: &[Tuned]) -> Self {
        let (mut settings, mut tuned, mut ignored) = (file.clone(), Vec::new(), Vec::new());
        for one in stored {
            match judge(file, one) {
                Ok((setting, value)) => {
                    setting.set(&mut settings, value);
                    tuned.push((setting, one.set_by.clone()));
                }
                Err(why) => ignored.push(format!("tuning is passed over: {why}")),
            }
        }
        if let Err(why) = together(&settings, file) {
            ignored.push(format!("all tuning is passed over, together it does not fit: {why}"));
            return Self { settings: file.clone(), tuned: Vec::new(), ignored };
        }
        Self { settings, tuned, ignored }
    }

    /// Who set it, if it is tuned; the inner `None` if nobody knows.
    #[must_use]
    pub fn tuned(&self, setting: Tunable) -> Option<&Option<SetBy>> {
        self.tuned.iter().find(|(one, _)| *one == setting).map(|(_, by)| by)
    }
}

fn judge(file: &RelaySettings, one: &Tuned) -> Result<(Tunable, u64), String> {
    let name = &one.setting;
    let setting = Tunable::named(name)
        .ok_or_else(|| format!("this version knows no setting `{name}` that can be tuned"))?;
    let value = one.value.as_u64().ok_or_else(|| format!("{name} is {}, which is no number", one.value))?;
    setting.check(file, value)?;
    Ok((setting, value))
}

/// What the file's own check says, and that nobody asks for a page that is larger than what a lane may have
/// in hand. A file may: its pages are as large as there is room.
fn together(settings: &RelaySettings, file: &RelaySettings) -> Result<(), String> {
    settings.check()?;
    let (page, most) = (settings.page_events_max, settings.max_unsettled_events);
    if page > most && page != file.page_events_max {
        return Err(format!("page_events_max {page} is above max_unsettled_events, {most}"));
    }
    Ok(())
}

/// When something ends by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ends {
    /// This long after it was set.
    In(Duration),
    /// At this instant.
    At(Timestamp),
}

impl Ends {
    /// The instant by the store's clock, or why it is refused.
    pub fn at(self, now: Timestamp) -> Result<Timestamp, AdminError> {
        let micros = |length: Duration| i64::try_from(length.as_micros()).unwrap_or(i64::MAX);
        let end = match self {
            Self::In(length) => Timestamp(now.0.saturating_add(micros(length))),
            Self::At(instant) => instant,
        };
        let why = match end {
            end if end <= now => "lies in the past",
            end if end.0.saturating_sub(now.0) > micros(ENDS_WITHIN) => "is more than 30 days away",
            end => return Ok(end),
        };
        let shown = match self {
            Self::In(length) => format!("an end in {} s", length.as_secs()),
            Self::At(instant) => format!("an end at {}", instant.rfc3339()),
        };
        let why = format!("{shown} {why}; the database's clock says {}", now.rfc3339());
        Err(AdminError::invalid(AdminCode::BadEnd, why))
    }
}

/// What an operator does to the tuning of an outbox.
#[derive(Debug, Clone, PartialEq)]
pub enum TuneAct {
    /// Lays these over the file's, until then. What else is tuned stays as it is.
    Set {
        /// Settings and their values.
        values: Vec<(Tunable, u64)>,
        /// When they end.
        ends: Ends,
        /// What the file says: values are judged by it.
        file: Box<RelaySettings>,
    },
    /// Goes back to the file's: of these, or of all where none is named, those of other versions too.
    Clear(Vec<Tunable>),
}

impl TuneAct {
    /// Refuses what does not fit the file, alone or with what is tuned already.
    pub fn check(&self, stored: &[Tuned]) -> Result<(), AdminError> {
        let Self::Set { values, file, .. } = self else { return Ok(()) };
        let refused = |why: String| AdminError::invalid(AdminCode::BadTuning, why);
        if values.is_empty() {
            let names = Tunable::ALL.map(Tunable::name).join(", ");
            return Err(refused(format!("no setting is named; these can be tuned: {names}")));
        }
        // All that is stored, in force or not: relays would lay it over the file together with this.
        let mut settings = (**file).clone();
        for (setting, value) in stored.iter().filter_map(|one| judge(file, one).ok()) {
            setting.set(&mut settings, value);
        }
        for (setting, value) in values {
            setting.check(file, *value).map_err(refused)?;
            setting.set(&mut settings, *value);
        }
        together(&settings, file).map_err(refused)
    }

    /// The audit's word.
    #[must_use]
    pub fn action(&self) -> &'static str {
        match self {
            Self::Set { .. } => "tune",
            Self::Clear(_) => "untune",
        }
    }

    /// The audit's detail; `until` is when it ends.
    #[must_use]
    pub fn detail(&self, until: Option<Timestamp>) -> Value {
        match self {
            Self::Set { values, .. } => {
                let values =
                    values.iter().map(|(setting, value)| (setting.name().to_owned(), (*value).into()));
                json!({ "settings": Value::Object(values.collect()), "until": until })
            }
            Self::Clear(settings) if settings.is_empty() => json!({ "settings": "all" }),
            Self::Clear(settings) => {
                json!({ "settings": settings.iter().map(|one| one.name()).collect::<Vec<_>>() })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(setting: &str, value: Value) -> Tuned {
        Tuned { setting: setting.to_owned(), value, set_by: None }
    }

    fn set(values: &[(Tunable, u64)]) -> TuneAct {
        let ends = Ends::In(Duration::from_secs(60));
        TuneAct::Set { values: values.to_vec(), ends, file: Box::default() }
    }

    #[test]
    fn what_fits_is_laid_over_and_the_rest_is_told_and_passed_over() {
        let file = RelaySettings::default();
        let stored = [
            row("poll_max_ms", json!(500)),
            row("page_events_max", json!(300)),
            row("warp_factor", json!(9)),
            row("due_events_max", json!("many")),
            row("settle_interval_ms", json!(-3)),
            row("poll_min_ms", json!(31)),
        ];
        let found = InForce::new(&file, &stored);
        let expected = RelaySettings { poll_max_ms: 500, page_events_max: 300, ..file.clone() };
        assert_eq!((&found.settings, found.ignored.len()), (&expected, 4), "{:?}", found.ignored);
        assert!(found.tuned(Tunable::PollMax).is_some() && found.tuned(Tunable::PollMin).is_none());
        assert!(found.ignored[0].contains("knows no setting `warp_factor`"), "{:?}", found.ignored);
        assert!(found.ignored[3].contains("not between 1 and 30"), "{:?}", found.ignored);
        // Alone each of them fits.
        let narrow = RelaySettings { poll_min_ms: 100, poll_max_ms: 200, ..file };
        let found =
            InForce::new(&narrow, &[row("poll_min_ms", json!(900)), row("due_events_max", json!(100))]);
        assert_eq!((found.settings, found.tuned.len(), found.ignored.len()), (narrow, 0, 1));
        // A file whose pages are larger than the window is no reason to refuse anything else.
        let large = RelaySettings { page_events_max: 10_000, ..RelaySettings::default() };
        let found = InForce::new(&large, &[row("poll_max_ms", json!(500))]);
        assert_eq!((found.settings.poll_max_ms, found.ignored.len()), (500, 0), "{:?}", found.ignored);
    }

    #[test]
    fn an_act_is_judged_by_the_file_and_by_what_is_tuned_already() {
        let refused = |act: TuneAct, stored: &[Tuned]| act.check(stored).expect_err("refused").to_string();
        assert!(set(&[(Tunable::PollMax, 50_000)]).check(&[]).is_ok());
        assert!(refused(set(&[(Tunable::PollMax, 50_001)]), &[]).contains("between 500 and 50000"));
        assert!(refused(set(&[(Tunable::PollMax, 499)]), &[]).contains("ten times of the file's 5000"));
        assert!(refused(set(&[]), &[]).contains("poll_min_ms, poll_max_ms"));
        assert!(
            refused(set(&[(Tunable::PageEvents, 9_000)]), &[]).contains("above max_unsettled_events, 8192")
        );
        let file = RelaySettings { poll_min_ms: 100, poll_max_ms: 200, ..RelaySettings::default() };
        let wide = [(Tunable::PollMin, 900), (Tunable::PollMax, 1_000)];
        let of = |values: &[(Tunable, u64)]| {
            let (values, ends) = (values.to_vec(), Ends::In(Duration::from_secs(1)));
            TuneAct::Set { values, ends, file: Box::new(file.clone()) }
        };
        assert!(of(&wide).check(&[]).is_ok());
        assert!(refused(of(&wide[..1]), &[]).contains("not above poll_max_ms"));
        assert!(of(&wide[..1]).check(&[row("poll_max_ms", json!(2_000))]).is_ok());
        assert!(TuneAct::Clear(Vec::new()).check(&[]).is_ok());
        // The file's largest pause was lowered since: no relay goes by what is stored, nor by more of it.
        let late = [row("poll_min_ms", json!(900))];
        assert!(refused(of(&[(Tunable::DueEvents, 100)]), &late).contains("not above poll_max_ms"));
        assert!(of(&wide[1..]).check(&late).is_ok());
    }

    #[test]
    fn an_end_lies_ahead_and_not_too_far() {
        let now = Timestamp(1_700_000_000_000_000);
        let hour = Duration::from_secs(3_600);
        assert_eq!(Ends::In(hour).at(now).ok(), Some(now.plus_micros(3_600_000_000)));
        assert_eq!(Ends::At(now.plus_micros(1)).at(now).ok(), Some(now.plus_micros(1)));
        for end in
            [Ends::At(now), Ends::In(Duration::ZERO), Ends::In(hour * 24 * 31), Ends::In(Duration::MAX)]
        {
            assert_eq!(end.at(now).expect_err("refused").code(), "admin.bad_end", "{end:?}");
        }
    }
}
