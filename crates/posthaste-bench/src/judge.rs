//! Figures that have to be something, and whether they are.

use crate::report::Report;
use serde_json::{Map, Value, json};

/// What a figure has to be.
#[derive(Debug, Clone, Copy)]
pub(super) enum Target {
    Most(f64),
    Least(f64),
    Within(f64, f64),
}

impl Target {
    /// What could not be measured holds nothing.
    fn is_met(self, value: f64) -> bool {
        match self {
            Self::Most(most) => value <= most,
            Self::Least(least) => value >= least,
            Self::Within(least, most) => (least..=most).contains(&value),
        }
    }

    fn words(self) -> String {
        match self {
            Self::Most(most) => format!("{most} at most"),
            Self::Least(least) => format!("{least} at least"),
            Self::Within(least, most) => format!("{least} to {most}"),
        }
    }
}

/// The report, with what each figure has to be.
pub(super) struct Judge<'a> {
    pub(super) report: &'a mut Report,
    /// Whether what is missed counts: the measurement is large enough.
    is_judged: bool,
    targets: Map<String, Value>,
}

impl<'a> Judge<'a> {
    pub(super) fn new(report: &'a mut Report, is_judged: bool) -> Self {
        Self { report, is_judged, targets: Map::new() }
    }

    /// A figure with its target, and a sentence if that is missed.
    pub(super) fn target(&mut self, name: &str, value: f64, target: Target, words: &str) {
        let (is_met, must) = (target.is_met(value), target.words());
        let verdict = if is_met { "met" } else { "MISSED" };
        let dash = if words.is_empty() { "" } else { "; " };
        self.report.figure(name, value, &format!("{words}{dash}{must}: {verdict}"));
        self.targets.insert(name.to_owned(), json!({ "must_be": must, "met": is_met }));
        if self.is_judged && !is_met {
            self.report.miss(format!("{name} is {value:.2}, and must be {must}"));
        }
    }

    pub(super) fn end(self) {
        self.report.detail("targets", self.targets);
        self.report.detail("judged", self.is_judged);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_measured_meets_no_target() {
        for target in [Target::Most(1.0), Target::Least(1.0), Target::Within(0.5, 1.5)] {
            assert!(target.is_met(1.0) && !target.is_met(f64::NAN), "{target:?}");
        }
        assert!(!Target::Most(1.0).is_met(1.1) && !Target::Least(1.0).is_met(0.9));
        assert!(!Target::Within(190.0, 210.0).is_met(211.0));
    }

    #[test]
    fn a_missed_target_is_said_and_counts_where_it_is_judged() {
        for is_judged in [false, true] {
            let mut report = Report::default();
            let mut judge = Judge::new(&mut report, is_judged);
            judge.target("slow_ms", 61.0, Target::Most(60.0), "");
            assert_eq!(judge.targets["slow_ms"]["met"], false);
            judge.end();
            assert_eq!(report.missed().is_err(), is_judged);
        }
    }
}
