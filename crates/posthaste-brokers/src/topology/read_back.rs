//! What became of changes: by the broker's answer, and by another look.
//!
//! An answer says that a change was accepted. It is done when the broker shows it, which may be a moment
//! later. When the answer is lost, the same look says whether the change was made.

use super::{
    AdminFailure, BrokerAdmin, ChangeAct, Kind, PASSWORD, Resource, Rules, Scope, TopologyChange,
    TopologyLook,
};
use posthaste::crash_point;
use std::time::{Duration, Instant};

/// How long a change may take until the broker shows it.
const SHOWN_WITHIN: Duration = Duration::from_secs(30);
/// Between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
const LOOK_AGAIN_MAX: Duration = Duration::from_secs(1);

/// What became of a request.
#[derive(Debug)]
pub(crate) enum Sent {
    /// It was answered: done, or nothing to do.
    Done,
    /// The broker refused it. Nothing was changed.
    Refused(String),
    /// Nobody answered. It may be done.
    Unanswered(String),
}

/// Looks until everything that was not refused is shown, or the time is over. One answer for each change.
pub(crate) async fn read_back(
    admin: &dyn BrokerAdmin,
    changes: &[TopologyChange],
    sent: Vec<Sent>,
) -> Vec<Result<(), AdminFailure>> {
    // CRASH(topology.sent): the cluster has the changes, and nobody was told. The next plan shows what is
    // left; the order of changes leaves nobody without a right.
    crash_point!("topology.sent");
    let asked: Vec<&TopologyChange> = changes
        .iter()
        .zip(&sent)
        .filter(|(_, sent)| !matches!(sent, Sent::Refused(_)))
        .map(|(change, _)| change)
        .collect();
    let mut shown = until_shown(admin, &asked).await.into_iter();
    sent.into_iter()
        .map(|sent| {
            let otherwise = match sent {
                Sent::Refused(why) => return Err(AdminFailure::Refused(why)),
                Sent::Done => "it was accepted, and the cluster does not show it yet".to_owned(),
                Sent::Unanswered(why) => format!("not known, plan again: {why}"),
            };
            if shown.next() == Some(true) { Ok(()) } else { Err(AdminFailure::Unknown(otherwise)) }
        })
        .collect()
}

/// One answer for each.
async fn until_shown(admin: &dyn BrokerAdmin, changes: &[&TopologyChange]) -> Vec<bool> {
    let until = Instant::now() + SHOWN_WITHIN;
    let mut pause = LOOK_AGAIN;
    let scope = Scope {
        named: changes.iter().map(|change| change.resource.flag_name()).collect(),
        kinds: changes.iter().map(|change| change.resource.kind).collect(),
        ..Scope::default()
    };
    loop {
        if changes.is_empty() {
            return Vec::new();
        }
        let shown: Vec<bool> = match admin.look(&scope).await {
            Ok(look) => changes.iter().map(|change| is_shown(change, &look, admin)).collect(),
            Err(_) => vec![false; changes.len()],
        };
        if shown.iter().all(|shown| *shown) || Instant::now() >= until {
            return shown;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LOOK_AGAIN_MAX);
    }
}

/// Whether a look shows that a change was made.
fn is_shown(change: &TopologyChange, look: &TopologyLook, rules: &dyn Rules) -> bool {
    let wanted = &change.resource;
    let found = look.resources.iter().find(|found| found.identity() == wanted.identity());
    match (change.act, found) {
        (ChangeAct::Remove, found) => found.is_none() && look.sees(wanted.kind, &wanted.name),
        (_, None) => false,
        (ChangeAct::Add, Some(found)) => {
            wanted.settings.iter().all(|(name, to)| has(found, name, Some(to), rules))
        }
        (ChangeAct::Change, Some(found)) => {
            change.settings.iter().all(|setting| has(found, &setting.name, setting.to.as_deref(), rules))
        }
    }
}

fn has(found: &Resource, name: &str, to: Option<&str>, rules: &dyn Rules) -> bool {
    let now = found.settings.get(name);
    match (now, to) {
        // It cannot be read back; the request was answered.
        _ if found.kind == Kind::User && name == PASSWORD => true,
        (Some(now), Some(to)) => rules.is_same(found.kind, name, now, to),
        (now, None) => now.is_none() || found.defaults.contains(name),
        (None, Some(_)) => false,
    }
}
