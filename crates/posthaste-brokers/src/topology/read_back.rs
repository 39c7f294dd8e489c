//! What became of changes: by the broker's answer, and by another look.
//!
//! An answer says that a change was accepted. It is done when the broker shows it, which may be a moment
//! later. When the answer is lost, the same look says whether the change was made.

use super::{
    AdminFailure, BrokerAdmin, ChangeAct, Kind, PASSWORD, PASSWORD_AS_WANTED, Resource, Rules, Scope,
    TopologyChange, TopologyLook, WantedSecret,
};
use posthaste::crash_point;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long a change may take until the broker shows it.
const SHOWN_WITHIN: Duration = Duration::from_secs(30);
/// The same without an answer: then it may never have been asked for.
const LOST_WITHIN: Duration = Duration::from_secs(10);
/// Between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
const LOOK_AGAIN_MAX: Duration = Duration::from_millis(200);

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
/// What was refused and is there all the same was made by somebody else at the same time: it is done.
pub(crate) async fn read_back(
    admin: &dyn BrokerAdmin,
    changes: &[TopologyChange],
    sent: Vec<Sent>,
    secrets: &[WantedSecret],
) -> Vec<Result<(), AdminFailure>> {
    // CRASH(topology.sent): the cluster has the changes, and nobody was told. The next plan shows what is
    // left; the order of changes leaves nobody without a right.
    crash_point!("topology.sent");
    let shown = until_shown(admin, changes, &sent, secrets).await;
    let answer = |(sent, is_shown): (Sent, bool)| match sent {
        _ if is_shown => Ok(()),
        Sent::Refused(why) => Err(AdminFailure::Refused(why)),
        Sent::Done => {
            Err(AdminFailure::Unknown("it was accepted, and the cluster does not show it yet".to_owned()))
        }
        Sent::Unanswered(why) => Err(AdminFailure::Unknown(format!("not known, plan again: {why}"))),
    };
    sent.into_iter().zip(shown).map(answer).collect()
}

/// One answer for each.
async fn until_shown(
    admin: &dyn BrokerAdmin,
    changes: &[TopologyChange],
    sent: &[Sent],
    secrets: &[WantedSecret],
) -> Vec<bool> {
    if changes.is_empty() {
        return Vec::new();
    }
    let is_answered = sent.iter().all(|sent| matches!(sent, Sent::Done));
    let is_lost = sent.iter().any(|sent| matches!(sent, Sent::Unanswered(_)));
    let until = Instant::now() + if is_lost { LOST_WITHIN } else { SHOWN_WITHIN };
    let mut pause = LOOK_AGAIN;
    // A password is tried only where no answer vouches for it.
    let scope = Scope {
        named: changes.iter().map(|change| change.resource.flag_name()).collect(),
        kinds: changes.iter().map(|change| change.resource.kind).collect(),
        secrets: if is_answered { Vec::new() } else { secrets.to_vec() },
        ..Scope::default()
    };
    loop {
        let shown: Vec<bool> = match admin.look(&scope).await {
            Ok(look) => all_shown(changes, sent, &look, admin),
            Err(_) => vec![false; changes.len()],
        };
        let is_over = |(sent, shown): (&Sent, &bool)| *shown || matches!(sent, Sent::Refused(_));
        if sent.iter().zip(&shown).all(is_over) || Instant::now() >= until {
            return shown;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LOOK_AGAIN_MAX);
    }
}

fn all_shown(changes: &[TopologyChange], sent: &[Sent], look: &TopologyLook, rules: &dyn Rules) -> Vec<bool> {
    let live: HashMap<_, &Resource> = look.resources.iter().map(|found| (found.identity(), found)).collect();
    let one = |(change, sent): (&TopologyChange, &Sent)| {
        let found = live.get(&change.resource.identity()).copied();
        is_shown(change, sent, found, rules) && look.sees(change.resource.kind, &change.resource.name)
    };
    changes.iter().zip(sent).map(one).collect()
}

/// Whether a look shows that a change was made.
fn is_shown(change: &TopologyChange, sent: &Sent, found: Option<&Resource>, rules: &dyn Rules) -> bool {
    match (change.act, found) {
        (ChangeAct::Remove, found) => found.is_none(),
        (_, None) => false,
        // A password cannot be read back. An answer vouches for it; without one, only a login does.
        (_, Some(found)) if found.kind == Kind::User && !matches!(sent, Sent::Done) => {
            found.settings.get(PASSWORD).is_some_and(|found| found == PASSWORD_AS_WANTED)
                && has_all(change, found, rules)
        }
        (_, Some(found)) => has_all(change, found, rules),
    }
}

fn has_all(change: &TopologyChange, found: &Resource, rules: &dyn Rules) -> bool {
    match change.act {
        ChangeAct::Change => {
            change.settings.iter().all(|setting| has(found, &setting.name, setting.to.as_deref(), rules))
        }
        _ => change.resource.settings.iter().all(|(name, to)| has(found, name, Some(to), rules)),
    }
}

fn has(found: &Resource, name: &str, to: Option<&str>, rules: &dyn Rules) -> bool {
    let now = found.settings.get(name);
    match (now, to) {
        _ if found.kind == Kind::User && name == PASSWORD => true,
        (Some(now), Some(to)) => rules.is_same(found.kind, name, now, to),
        (now, None) => now.is_none() || found.defaults.contains(name),
        (None, Some(_)) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{PASSWORD_NOT_COMPARED, PASSWORD_OTHER, Risk, Settings};
    use super::*;

    struct Mild;

    impl Rules for Mild {
        fn risk_of_setting(&self, _: &Resource, _: &str, _: Option<&str>) -> Risk {
            Risk::Plain
        }

        fn risk_of_removing(&self, _: &Resource) -> Risk {
            Risk::Plain
        }
    }

    fn resource(kind: Kind, pairs: &[(&str, &str)]) -> Resource {
        let pairs = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Resource::new(kind, "it", pairs.collect::<Settings>())
    }

    fn shown(act: ChangeAct, wanted: &Resource, sent: Sent, found: Option<&Resource>) -> bool {
        let change =
            TopologyChange { act, resource: wanted.clone(), settings: Vec::new(), risk: Risk::Plain };
        let look =
            TopologyLook { resources: found.cloned().into_iter().collect(), ..TopologyLook::default() };
        all_shown(&[change], &[sent], &look, &Mild) == [true]
    }

    #[test]
    fn a_password_whose_answer_was_lost_is_not_guessed() {
        let wanted = resource(Kind::User, &[(PASSWORD, PASSWORD_AS_WANTED), ("scram-sha-512", "8192")]);
        let lost = || Sent::Unanswered("no answer".to_owned());
        for (password, sent, expected) in [
            (PASSWORD_NOT_COMPARED, Sent::Done, true),
            (PASSWORD_NOT_COMPARED, lost(), false),
            (PASSWORD_OTHER, lost(), false),
            (PASSWORD_OTHER, Sent::Refused("no".to_owned()), false),
            (PASSWORD_AS_WANTED, lost(), true),
        ] {
            let found = resource(Kind::User, &[(PASSWORD, password), ("scram-sha-512", "8192")]);
            assert_eq!(shown(ChangeAct::Add, &wanted, sent, Some(&found)), expected, "{password}");
        }
    }

    #[test]
    fn the_look_decides_and_not_the_answer() {
        let wanted = resource(Kind::Topic, &[("partitions", "3")]);
        let other = resource(Kind::Topic, &[("partitions", "1")]);
        let refused = || Sent::Refused("it is there".to_owned());
        assert!(shown(ChangeAct::Add, &wanted, refused(), Some(&wanted)), "somebody else made it");
        assert!(!shown(ChangeAct::Add, &wanted, refused(), Some(&other)));
        assert!(!shown(ChangeAct::Add, &wanted, Sent::Done, None));
        assert!(shown(ChangeAct::Remove, &wanted, Sent::Unanswered(String::new()), None));
        assert!(!shown(ChangeAct::Remove, &wanted, Sent::Done, Some(&wanted)));
    }
}
