//! The settings that a relay goes by: the file's, with what operators laid over them; and what the log hears
//! of it.

use crate::admin::{InForce, Tunable, Tuned};
use crate::relay::RelaySettings;
use std::sync::Arc;
use tokio::sync::watch;

pub(crate) struct TunedSettings {
    outbox: Arc<str>,
    file: watch::Receiver<RelaySettings>,
    in_force: watch::Sender<RelaySettings>,
    last: InForce,
}

impl TunedSettings {
    pub(crate) fn new(outbox: Arc<str>, file: watch::Receiver<RelaySettings>) -> Self {
        let last = InForce::new(&file.borrow(), &[]);
        Self { outbox, file, in_force: watch::channel(last.settings.clone()).0, last }
    }

    /// What lanes go by.
    pub(crate) fn subscribe(&self) -> watch::Receiver<RelaySettings> {
        self.in_force.subscribe()
    }

    /// The file and the store as they are now.
    pub(crate) fn apply(&mut self, stored: &[Tuned]) {
        let now = InForce::new(&self.file.borrow(), stored);
        if now == self.last {
            return;
        }
        for change in changes(&self.last, &now, &self.file.borrow()) {
            tracing::info!(outbox = %self.outbox, "{change}");
        }
        for why in now.ignored.iter().filter(|why| !self.last.ignored.contains(why)) {
            tracing::warn!(outbox = %self.outbox, "{why}");
        }
        self.in_force.send_if_modified(|settings| {
            let differs = *settings != now.settings;
            settings.clone_from(&now.settings);
            differs
        });
        self.last = now;
    }
}

/// A line for each setting that is tuned otherwise than before, or not any more.
fn changes(before: &InForce, now: &InForce, file: &RelaySettings) -> Vec<String> {
    let change = |setting: Tunable| {
        let (name, value, files) = (setting.name(), setting.of(&now.settings), setting.of(file));
        match (before.tuned(setting), now.tuned(setting)) {
            (Some(_), None) => {
                Some(format!("relay.{name} is {files} again, as the file says: its tuning is over"))
            }
            (then, Some(by)) if then != Some(by) || setting.of(&before.settings) != value => {
                let by = by.as_ref().map_or_else(String::new, crate::admin::SetBy::words);
                Some(format!("relay.{name} is {value} instead of the file's {files}{by}"))
            }
            _ => None,
        }
    };
    Tunable::ALL.into_iter().filter_map(change).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_tuning_is_laid_over_the_file_and_goes_again() {
        let (file, files) = watch::channel(RelaySettings::default());
        let mut settings = TunedSettings::new("o".into(), files);
        let lane = settings.subscribe();
        let row = |value: u64| Tuned { setting: "poll_max_ms".to_owned(), value: json!(value), set_by: None };
        settings.apply(&[row(700)]);
        assert_eq!(lane.borrow().poll_max_ms, 700);
        // The file changes below it.
        file.send_replace(RelaySettings { poll_max_ms: 6_000, poll_min_ms: 9, ..RelaySettings::default() });
        settings.apply(&[row(700)]);
        assert_eq!((lane.borrow().poll_max_ms, lane.borrow().poll_min_ms), (700, 9));
        settings.apply(&[row(5)]);
        assert_eq!(lane.borrow().poll_max_ms, 6_000, "what does not fit hurts nobody");
        settings.apply(&[]);
        assert_eq!(*lane.borrow(), *file.borrow());
    }

    #[test]
    fn each_change_is_told_once() {
        let file = RelaySettings::default();
        let of = |value: u64| {
            let row = Tuned { setting: "poll_max_ms".to_owned(), value: json!(value), set_by: None };
            InForce::new(&file, &[row])
        };
        let none = InForce::new(&file, &[]);
        let told = changes(&none, &of(700), &file);
        assert_eq!(told, ["relay.poll_max_ms is 700 instead of the file's 5000"]);
        assert!(changes(&of(700), &of(700), &file).is_empty());
        assert_eq!(changes(&of(700), &of(800), &file).len(), 1);
        let told = changes(&of(700), &none, &file);
        assert_eq!(told, ["relay.poll_max_ms is 5000 again, as the file says: its tuning is over"]);
    }
}
