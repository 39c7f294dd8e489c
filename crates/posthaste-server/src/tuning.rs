//! Tuning as people see it: of each setting what the file says, what is in force, and by whom. What `tune`
//! and the API show.

use posthaste::admin::{InForce, SetBy, Tunable, Tuned};
use posthaste::relay::RelaySettings;
use schemars::JsonSchema;
use serde::Serialize;
use std::time::Duration;

/// A tuning ends after this long, unless told otherwise: what was set for an evening is not found in a year.
pub(crate) const HOUR: Duration = Duration::from_secs(3_600);

/// The settings of an outbox that can be tuned.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ShownTuning {
    /// The outbox.
    pub(crate) outbox: String,
    /// Each of them.
    pub(crate) settings: Vec<ShownSetting>,
    /// What is stored and passed over, and why: a sentence each.
    pub(crate) passed_over: Vec<String>,
}

/// One setting.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ShownSetting {
    /// Its name in `[relay]`.
    pub(crate) setting: &'static str,
    /// What the file says.
    pub(crate) file: u64,
    /// What relays with this file go by.
    pub(crate) in_force: u64,
    /// Whether something is laid over the file's.
    pub(crate) tuned: bool,
    /// Who did that, why, and until when; `null` if it was written by hand.
    pub(crate) set_by: Option<SetBy>,
}

impl ShownTuning {
    /// What is stored, judged by this file.
    pub(crate) fn new(outbox: &str, file: &RelaySettings, stored: &[Tuned]) -> Self {
        let found = InForce::new(file, stored);
        let one = |setting: Tunable| {
            let by = found.tuned(setting);
            ShownSetting {
                setting: setting.name(),
                file: setting.of(file),
                in_force: setting.of(&found.settings),
                tuned: by.is_some(),
                set_by: by.cloned().flatten(),
            }
        };
        let settings = Tunable::ALL.into_iter().map(one).collect();
        Self { outbox: outbox.to_owned(), settings, passed_over: found.ignored }
    }
}

/// The setting of this name, or which there are.
pub(crate) fn setting(text: &str) -> Result<Tunable, String> {
    let names = || format!("must be one of {}", Tunable::ALL.map(Tunable::name).join(", "));
    Tunable::named(text).ok_or_else(names)
}
