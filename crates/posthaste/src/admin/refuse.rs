//! When an operator's act is refused, and with which words: once, for every store. Pure.
//!
//! A store looks up what these ask for (which sinks are known, how far one has come) and asks. Every refusal
//! leaves the outbox as it was.

use super::bounds::{IDS_NAMED_MAX, LANES_MAX};
use super::error::{AdminCode, AdminError};
use super::event::made_at;
use super::{Actor, DeadFilter, DeferredFilter, EventFilter, EventName, RewindTo, Where};
use crate::event::Timestamp;
use crate::route::UNROUTED;
use uuid::Uuid;

/// Characters of a place that a refusal quotes.
const PLACE_SHOWN: usize = 80;

type Checked = Result<(), AdminError>;

impl Actor {
    /// An audit without a name or a reason is none.
    pub fn check(&self) -> Checked {
        let named = [(&self.name, "who acts"), (&self.reason, "the reason")];
        match named.iter().find(|(text, _)| text.trim().is_empty()) {
            None => Ok(()),
            Some((_, what)) => {
                let why = format!("{what} is missing: every act is audited");
                Err(AdminError::invalid(AdminCode::ActorMissing, why))
            }
        }
    }
}

/// Who names letters one by one means a few (G7).
fn check_ids(ids: &[Uuid]) -> Checked {
    if ids.len() <= IDS_NAMED_MAX {
        return Ok(());
    }
    let why = format!(
        "{} ids: a filter names at most {IDS_NAMED_MAX}; name what they have in common (a cause, a topic, a time), or act \
         on them in parts. Nothing was done",
        ids.len()
    );
    Err(AdminError::invalid(AdminCode::BadFilter, why))
}

impl DeferredFilter {
    /// An act on everything is asked for in words, not by leaving them out.
    pub fn check(&self) -> Checked {
        if !self.is_empty() {
            return check_ids(&self.ids);
        }
        let why = "the filter names no event; say `all` if all of them are meant";
        Err(AdminError::invalid(AdminCode::EmptyFilter, why))
    }
}

impl DeadFilter {
    /// An act on everything is asked for in words, not by leaving them out.
    pub fn check(&self) -> Checked {
        if !self.is_empty() {
            return check_ids(&self.ids);
        }
        let why = "the filter names no letter; say `all` if all of them are meant";
        Err(AdminError::invalid(AdminCode::EmptyFilter, why))
    }
}

impl EventFilter {
    /// The same for events that are sent again.
    pub fn check(&self) -> Checked {
        if !self.is_empty() {
            return Ok(());
        }
        Err(AdminError::invalid(AdminCode::EmptyFilter, "the filter names no event"))
    }
}

impl Where {
    /// The refusal of a search that ended before all of the log was looked through. How to look further is
    /// said by whoever was asked, in words of its own.
    #[must_use]
    pub fn search_wider(&self, id: Uuid) -> AdminError {
        let why = match (self.near, made_at(id)) {
            (Some(near), _) => format!("it is not near {}", near.rfc3339()),
            (None, Some(made)) => {
                format!("it is not near {}, where its id says that it was made", made.rfc3339())
            }
            (None, None) => "its id does not say when it was made".to_owned(),
        };
        AdminError::not_found(AdminCode::SearchWider, format!("event {id} was not found yet: {why}"))
    }
}

impl RewindTo {
    /// Refuses a number that no log has.
    pub fn check(self) -> Checked {
        match self {
            Self::Seq(seq) if seq < 0 => {
                let why = format!("{seq} is no number of the log: they begin at 1");
                Err(AdminError::invalid(AdminCode::BadSeq, why))
            }
            Self::Seq(_) | Self::Earliest | Self::Time(_) => Ok(()),
        }
    }
}

impl AdminError {
    /// Refuses the name of a sink that has no lanes.
    pub fn check_sink(sink: &str, known: &[String]) -> Checked {
        if known.iter().any(|name| name == sink) {
            return Ok(());
        }
        let why = if known.is_empty() {
            format!("there is no sink `{sink}`: no relay has run on this outbox yet")
        } else {
            format!("there is no sink `{sink}`; known are: {}", known.join(", "))
        };
        Err(Self::not_found(AdminCode::UnknownSink, why))
    }

    /// Refuses letters of which somebody took some between the look and the lock (F59).
    pub fn check_taken<T: PartialEq>(named: &[T], locked: &[T]) -> Checked {
        let taken = named.iter().filter(|letter| !locked.contains(letter)).count();
        if taken == 0 {
            return Ok(());
        }
        let why =
            format!("somebody else acted on {taken} of these letters at the same moment; nothing was done");
        Err(Self::conflict(AdminCode::Taken, why))
    }

    /// Refuses letters of sinks that left the configuration: as deferred events they would wait for ever,
    /// unseen.
    pub fn check_letters_served(retired: &[String]) -> Checked {
        if retired.is_empty() {
            return Ok(());
        }
        let names: Vec<String> = retired.iter().map(|sink| format!("`{sink}`")).collect();
        Err(Self::conflict(
            AdminCode::NotServed,
            format!(
                "no relay serves {} any more, so a replay would wait for ever; configure the sink again and start a relay \
                 with it, then replay. Or choose the letters of other sinks with --sink, or discard these. Nothing was done",
                names.join(", ")
            ),
        ))
    }

    /// Refuses to send events again to a sink that nobody serves. The sink of events without a route delivers
    /// nothing.
    pub fn check_served(sink: &str, served: bool) -> Checked {
        if served && sink != UNROUTED {
            return Ok(());
        }
        Err(Self::conflict(
            AdminCode::NotServed,
            format!(
                "no relay serves `{sink}`, so a replay would wait for ever; configure the sink and start a relay with it, \
                 then replay. Nothing was done"
            ),
        ))
    }

    /// A letter that no route took, and none takes now.
    #[must_use]
    pub fn no_route(topic: &str) -> Self {
        Self::conflict(
            AdminCode::NoRoute,
            format!(
                "no route takes the topic {topic:?} yet, so a replay would have nowhere to go; add the route, start the \
                 relay with it, and replay then. Nothing was done"
            ),
        )
    }

    /// An event that is nowhere.
    #[must_use]
    pub fn unknown_event(name: EventName) -> Self {
        let (name, never) = match name {
            EventName::Seq(seq) => (format!("number {seq}"), "drawn"),
            EventName::Id(id) => (format!("id {id}"), "appended"),
        };
        Self::not_found(
            AdminCode::UnknownEvent,
            format!(
                "no event has the {name}: it was rolled back, its time in the log is over, or it was never {never}"
            ),
        )
    }

    /// Refuses a number of lanes that cannot be.
    pub fn check_lanes(lanes: u16) -> Checked {
        if (1..=LANES_MAX).contains(&lanes) {
            return Ok(());
        }
        let why = format!("{lanes} lanes: there may be 1 to {LANES_MAX}");
        Err(Self::invalid(AdminCode::BadLanes, why))
    }

    /// A rewind goes back only: `foremost` is the position of the sink's foremost lane.
    pub fn check_rewind(sink: &str, foremost: i64, target: i64) -> Checked {
        if target <= foremost {
            return Ok(());
        }
        let why = format!(
            "sink `{sink}` stands at {foremost}; {target} lies in front of it, and going there would skip events"
        );
        Err(Self::conflict(AdminCode::RewindForward, why))
    }

    /// An instant behind the end of the log.
    #[must_use]
    pub fn nothing_since(instant: Timestamp) -> Self {
        let why = format!("nothing in the log was appended at or after {}", instant.rfc3339());
        Self::conflict(AdminCode::NothingSince, why)
    }

    /// A repair of what is sound: `sound` says what fits the cursors.
    #[must_use]
    pub fn nothing_to_repair(sound: &str) -> Self {
        Self::conflict(
            AdminCode::NothingToRepair,
            format!(
                "there is nothing to repair: {sound} fit the cursors. To send events again, use `posthaste lanes rewind`"
            ),
        )
    }

    /// A repair that touches what belongs to the outbox's owner.
    #[must_use]
    pub fn owner_needed(rights: &[String]) -> Self {
        let rights = rights.join(" and ");
        let why =
            format!("this repair needs {rights}: run it as the owner of the outbox. Nothing was changed");
        Self::conflict(AdminCode::OwnerNeeded, why)
    }

    /// A place in a list that is none of this outbox.
    #[must_use]
    pub fn bad_place(place: &str) -> Self {
        let shown: String = place.chars().take(PLACE_SHOWN).collect();
        Self::invalid(
            AdminCode::BadPlace,
            format!(
                "{shown:?} is no place in this list: ask for the first page, and go on with the place that it answers"
            ),
        )
    }

    /// What an adopted table has no place for.
    #[must_use]
    pub fn adopted(table: &str, why: &str) -> Self {
        Self::invalid(AdminCode::Adopted, format!("{table} is an adopted table: {why}"))
    }

    /// An adopted table without an audit: `missing` says what to make.
    #[must_use]
    pub fn audit_missing(missing: &str) -> Self {
        Self::invalid(AdminCode::AuditMissing, format!("{missing}. Nothing was done"))
    }
}

/// The number of the letter that a place stands for; without a place, none.
pub fn letter_of_place(place: Option<&str>) -> Result<Option<i64>, AdminError> {
    let Some(place) = place else { return Ok(None) };
    let number = place.parse().ok().filter(|_| place.bytes().all(|byte| byte.is_ascii_digit()));
    number.map(Some).ok_or_else(|| AdminError::bad_place(place))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn code(checked: Checked) -> &'static str {
        checked.err().map_or("allowed", |error| error.code())
    }

    #[test]
    fn who_acts_and_on_what_is_said() {
        let actor = |name: &str, reason: &str| Actor::new(name, reason);
        assert_eq!(code(actor("eve", "lost").check()), "allowed");
        for (name, reason, what) in [(" ", "lost", "who acts"), ("eve", "\t", "the reason")] {
            let refused = actor(name, reason).check().expect_err("no audit");
            assert!(refused.to_string().starts_with(what), "{refused}");
        }
        assert_eq!(code(DeadFilter::default().check()), "admin.empty_filter");
        assert_eq!(code(DeadFilter { all: true, ..DeadFilter::default() }.check()), "allowed");
        assert_eq!(code(EventFilter::default().check()), "admin.empty_filter");
        assert_eq!(code(EventFilter { from_seq: Some(1), ..EventFilter::default() }.check()), "allowed");
    }

    #[test]
    fn sinks_and_letters() {
        let known = ["all".to_owned(), "rare".to_owned()];
        assert_eq!(code(AdminError::check_sink("all", &known)), "allowed");
        let refused = AdminError::check_sink("al", &known).expect_err("a slip").to_string();
        assert!(refused.ends_with("known are: all, rare"), "{refused}");
        let refused = AdminError::check_sink("al", &[]).expect_err("none").to_string();
        assert!(refused.ends_with("no relay has run on this outbox yet"), "{refused}");
        assert_eq!(code(AdminError::check_taken(&[1, 2], &[2, 1, 3])), "allowed");
        assert_eq!(code(AdminError::check_taken(&[1, 2], &[2])), "admin.taken");
        assert_eq!(code(AdminError::check_served("nats", true)), "allowed");
        for (sink, served) in [("nats", false), (UNROUTED, true)] {
            assert_eq!(code(AdminError::check_served(sink, served)), "admin.not_served", "{sink}");
        }
        let refused = AdminError::check_letters_served(&known).expect_err("retired").to_string();
        assert!(refused.contains("`all`, `rare` any more"), "{refused}");
    }

    #[test]
    fn a_letters_place_is_its_number_and_nothing_else() {
        assert_eq!(letter_of_place(None).ok(), Some(None));
        assert_eq!(letter_of_place(Some("17")).ok(), Some(Some(17)));
        for wrong in ["", "-1", "+1", "1 ", "x", "9223372036854775808", "0006.a", "١"] {
            let refused = letter_of_place(Some(wrong)).expect_err(wrong);
            assert_eq!(refused.code(), "admin.bad_place");
        }
        let long = letter_of_place(Some(&"\u{1b}[2J".repeat(99))).expect_err("no place").to_string();
        assert!(long.chars().count() < 600 && !long.contains('\u{1b}'), "{long}");
    }

    #[test]
    fn lanes_and_rewinds() {
        for (lanes, expected) in
            [(0, "admin.bad_lanes"), (1, "allowed"), (256, "allowed"), (257, "admin.bad_lanes")]
        {
            assert_eq!(code(AdminError::check_lanes(lanes)), expected, "{lanes}");
        }
        assert_eq!(code(AdminError::check_rewind("s", 7, 7)), "allowed");
        assert_eq!(code(AdminError::check_rewind("s", 7, 8)), "admin.rewind_forward");
        assert_eq!(code(RewindTo::Seq(-1).check()), "admin.bad_seq");
        assert_eq!(code(RewindTo::Seq(0).check()), "allowed");
    }

    #[test]
    fn an_id_says_when_it_was_made_or_that_it_does_not() {
        let id: Uuid = "0192f7a0-5c1e-7a3e-b1f2-000000000001".parse().expect("a UUID");
        assert_eq!(made_at(id), Some(Timestamp(0x0192_f7a0_5c1e * 1000)));
        let plain = Uuid::from_u128(0x1234_5678_9abc_4def_8000_0000_0000_0000);
        assert_eq!(made_at(plain), None);
        let told = |place: Where, id| place.search_wider(id).to_string();
        assert!(told(Where::default(), id).contains("where its id says that it was made"));
        assert!(told(Where::default(), plain).contains("does not say when it was made"));
        let near = Where { near: Some(Timestamp(0)), everywhere: false };
        assert!(told(near, id).contains("it is not near 1970-01-01T00:00:00"));
    }

    proptest! {
        #[test]
        fn any_text_is_a_place_or_refused(text in any::<String>()) {
            let _ = letter_of_place(Some(&text));
        }
    }
}
