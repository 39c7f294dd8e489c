//! The plan, its order, the words of files.

use super::file::OrDefault;
use super::*;
use posthaste::mutation::{Mutation, set};
use proptest::prelude::*;
use std::time::{Duration, Instant};

/// Rules that call every change plain and every removal destruction.
struct Mild;

impl Rules for Mild {
    fn risk_of_setting(&self, _: &Resource, _: &str, _: Option<&str>) -> Risk {
        Risk::Plain
    }

    fn risk_of_removing(&self, _: &Resource) -> Risk {
        Risk::Destroys("it goes".to_owned())
    }
}

fn settings(pairs: &[(&str, &str)]) -> Settings {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn wanted(kind: Kind, name: &str, pairs: &[(&str, &str)]) -> WantedResource {
    let settings = settings(pairs).into_iter().map(|(name, value)| (name, Some(value))).collect();
    WantedResource { kind, name: name.to_owned(), settings }
}

fn right(principal: &str, permission: &str, on: &str) -> Resource {
    Resource::new(Kind::Acl, principal, settings(&[("permission", permission), ("on", on)]))
}

fn look(resources: Vec<Resource>) -> TopologyLook {
    TopologyLook { resources, ..TopologyLook::default() }
}

fn planned(
    wanted: &[WantedResource],
    look: &TopologyLook,
    remove: &[&str],
    exclusive: &[&str],
) -> TopologyPlan {
    let remove = remove.iter().map(|name| name.parse().expect("a name")).collect();
    let exclusive = exclusive.iter().map(|name| (*name).to_owned()).collect();
    let request =
        PlanRequest { wanted, exclusive: &exclusive, look, remove: &remove, only: &BTreeSet::new() };
    plan(&request, &Mild)
}

fn acts(plan: &TopologyPlan) -> Vec<(ChangeAct, String)> {
    plan.changes.iter().map(|change| (change.act, change.resource.name.clone())).collect()
}

#[test]
fn f87_what_the_file_lacks_is_somebody_elses_and_stays() {
    let live = look(vec![
        Resource::new(Kind::Topic, "a", Settings::new()),
        Resource::new(Kind::Topic, "a.b", Settings::new()),
        right("User:x", "ALLOW", "t"),
    ]);
    let nothing = planned(&[], &live, &[], &[]);
    assert!(nothing.changes.is_empty() && nothing.others.len() == 3, "{nothing:?}");
    let named = planned(&[], &live, &["topic:a"], &[]);
    assert_eq!(acts(&named), [(ChangeAct::Remove, "a".to_owned())], "and not a.b");
    let allowed = Allowed::default();
    let flag = Missing::Flag("--allow-destroy", ResourceName::new(Kind::Topic, "a"));
    assert_eq!(named.changes[0].missing(&allowed), [flag]);
    // A topic of the file is not removed by the flag that lets it lose data.
    let kept = planned(&[wanted(Kind::Topic, "a", &[])], &live, &["topic:a"], &[]);
    assert!(kept.changes.is_empty(), "{kept:?}");
}

#[test]
fn a_right_too_many_of_an_exclusive_principal_is_a_difference() {
    let live = look(vec![right("User:x", "ALLOW", "t"), right("User:x", "ALLOW", "more")]);
    let file = [wanted(Kind::Acl, "User:x", &[("permission", "ALLOW"), ("on", "t")])];
    assert!(planned(&file, &live, &[], &[]).changes.is_empty());
    let drift = planned(&file, &live, &[], &["User:x"]);
    assert_eq!(acts(&drift), [(ChangeAct::Remove, "User:x".to_owned())]);
    assert!(!drift.changes[0].missing(&Allowed::default()).is_empty(), "it still needs its flag");
}

#[test]
fn only_settings_that_the_file_names_are_compared() {
    let mut topic = Resource::new(Kind::Topic, "t", settings(&[("a", "1"), ("b", "2"), ("c", "3")]));
    topic.defaults.insert("c".to_owned());
    let mut file = wanted(Kind::Topic, "t", &[("a", "9")]);
    file.settings.insert("b".to_owned(), None);
    file.settings.insert("c".to_owned(), None);
    let plan = planned(&[file], &look(vec![topic]), &[], &[]);
    let changed: Vec<_> =
        plan.changes[0].settings.iter().map(|s| (s.name.as_str(), s.to.as_deref())).collect();
    assert_eq!(changed, [("a", Some("9")), ("b", None)], "a default that is in force stays");
}

#[test]
fn what_could_not_be_seen_is_neither_made_nor_called_the_same() {
    let mut live = look(vec![Resource::new(Kind::Topic, "seen", Settings::new())]);
    live.unseen.push(Unseen {
        kind: Kind::Topic,
        name: Some("hidden".to_owned()),
        why: "no right".to_owned(),
    });
    live.unseen.push(Unseen { kind: Kind::Acl, name: None, why: "no right".to_owned() });
    let file = [
        wanted(Kind::Topic, "seen", &[]),
        wanted(Kind::Topic, "hidden", &[]),
        wanted(Kind::Acl, "User:x", &[("on", "t")]),
    ];
    let plan = planned(&file, &live, &[], &[]);
    assert!(plan.changes.is_empty(), "{plan:?}");
    assert_eq!(plan.same.get(&Kind::Topic), Some(&1));
    assert_eq!(plan.unseen.len(), 2);
}

#[test]
fn nobody_lacks_a_right_in_between() {
    let live = look(vec![
        right("User:x", "ALLOW", "old"),
        right("User:x", "DENY", "old"),
        Resource::new(Kind::Topic, "gone", Settings::new()),
    ]);
    let file = [
        wanted(Kind::Acl, "User:x", &[("permission", "DENY"), ("on", "new")]),
        wanted(Kind::Acl, "User:x", &[("permission", "ALLOW"), ("on", "new")]),
        wanted(Kind::Topic, "t", &[]),
        wanted(Kind::User, "u", &[]),
    ];
    let plan = planned(&file, &live, &["topic:gone", "acl:User:x"], &[]);
    let order: Vec<String> = plan
        .changes
        .iter()
        .map(|change| {
            let permission = change.resource.settings.get("permission").map_or("", String::as_str);
            format!("{:?} {} {permission}", change.act, change.resource.kind)
        })
        .collect();
    let first: BTreeSet<&str> = order[2..4].iter().map(String::as_str).collect();
    let second: BTreeSet<&str> = order[4..6].iter().map(String::as_str).collect();
    assert_eq!(order[..2], ["Add user ", "Add topic "]);
    assert_eq!(first, BTreeSet::from(["Add acl ALLOW", "Remove acl DENY"]), "{order:?}");
    assert_eq!(second, BTreeSet::from(["Add acl DENY", "Remove acl ALLOW"]), "{order:?}");
    assert_eq!(order[6], "Remove topic ");
}

/// The rules of a plan are worth something only if breaking them is seen.
#[test]
fn a_plan_that_is_broken_on_purpose_turns_red() {
    for (mutation, test) in [
        (Mutation::RemoveUnnamed, f87_what_the_file_lacks_is_somebody_elses_and_stays as fn()),
        (Mutation::RightsGoFirst, nobody_lacks_a_right_in_between),
    ] {
        set(Some(mutation));
        let ended = std::panic::catch_unwind(test);
        set(None);
        assert!(ended.is_err(), "{mutation:?} is not seen");
    }
}

/// The time that a plan takes for so many rights: half of them are there, and a tenth too many.
fn time_for(rights: usize) -> Duration {
    let of = |n: usize| (format!("User:{}", n % 1_000), format!("topic-{n}"));
    let file: Vec<WantedResource> = (0..rights)
        .map(of)
        .map(|(who, on)| wanted(Kind::Acl, &who, &[("permission", "ALLOW"), ("on", &on)]))
        .collect();
    let live = (rights / 2..rights + rights / 10).map(of);
    let live = look(live.map(|(who, on)| right(&who, "ALLOW", &on)).collect());
    let exclusive: Vec<String> = (0..1_000).map(|n| format!("User:{n}")).collect();
    let exclusive: Vec<&str> = exclusive.iter().map(String::as_str).collect();
    let started = Instant::now();
    let plan = planned(&file, &live, &[], &exclusive);
    let took = started.elapsed();
    assert_eq!(plan.changes.len(), rights / 2 + rights / 10);
    assert_eq!(plan.same.get(&Kind::Acl), Some(&(rights - rights / 2)));
    took
}

/// Ten times as many would take a hundred times as long, were each compared with each.
#[test]
fn a_hundred_thousand_rights_are_compared_in_time() {
    let some = (0..3).map(|_| time_for(10_000)).min().expect("three times");
    // The machine's other work only ever adds; so a second try counts, too.
    let is_fine = |many: Duration| many < some * 30;
    assert!(is_fine(time_for(100_000)) || is_fine(time_for(100_000)), "10,000 take {some:?}");
}

#[test]
fn durations_and_sizes_have_units() {
    for (text, ms) in [("7d", 604_800_000), ("1h30m", 5_400_000), ("500ms", 500), ("2w", 1_209_600_000)] {
        assert_eq!(duration_ms(text), Ok(Some(ms)), "{text}");
    }
    for (text, bytes) in [("10GiB", 10 << 30), ("1MiB", 1 << 20), ("100kB", 100_000), ("4096B", 4_096)] {
        assert_eq!(size_bytes(text), Ok(Some(bytes)), "{text}");
    }
    assert_eq!((duration_ms("forever"), size_bytes("forever")), (Ok(None), Ok(None)));
    for bad in ["", "7", "d", "7 days", "-1d", "1.5h", "99999999999999999999d", "7d!", "1y"] {
        assert!(duration_ms(bad).is_err(), "{bad}");
    }
    for bad in ["", "10", "GiB", "10 gib", "-1B", "99999999999TiB"] {
        assert!(size_bytes(bad).is_err(), "{bad}");
    }
    let words = |value, unit| in_words(value, unit);
    assert_eq!(words("604800000", Unit::Milliseconds), "7d");
    assert_eq!(words("259200000000000", Unit::Nanoseconds), "3d");
    assert_eq!(words("-1", Unit::Bytes), "forever");
    assert_eq!(words("10737418240", Unit::Bytes), "10GiB");
    assert_eq!(words("1000012", Unit::Bytes), "1000012B");
}

#[test]
fn a_flag_names_one_resource() {
    assert_eq!("topic:a".parse::<ResourceName>(), Ok(ResourceName::new(Kind::Topic, "a")));
    let principal: ResourceName = "acl:User:CN=a,OU=b".parse().expect("a name");
    assert_eq!((principal.kind, principal.name.as_str()), (Kind::Acl, "User:CN=a,OU=b"));
    for bad in ["a", "topic:", "topics:a", ":a"] {
        assert!(bad.parse::<ResourceName>().is_err(), "{bad}");
    }
}

#[test]
fn a_value_or_the_brokers_default() {
    let read = |text: &str| serde_json::from_str::<OrDefault<u16>>(text).map_err(|error| error.to_string());
    assert_eq!((read("2"), read("\"default\"")), (Ok(OrDefault::Is(2)), Ok(OrDefault::Default)));
    assert!(read("\"two\"").is_err());
}

/// Plays a plan out, as a broker would.
fn play(plan: &TopologyPlan, look: &TopologyLook) -> TopologyLook {
    let mut live = look.clone();
    for change in &plan.changes {
        let same = |found: &Resource| found.identity() == change.resource.identity();
        match change.act {
            ChangeAct::Add => live.resources.push(change.resource.clone()),
            ChangeAct::Remove => live.resources.retain(|found| !same(found)),
            ChangeAct::Change => {
                let found = live.resources.iter_mut().find(|found| same(found)).expect("it is there");
                for setting in &change.settings {
                    match &setting.to {
                        Some(to) => found.settings.insert(setting.name.clone(), to.clone()),
                        None => found.settings.remove(&setting.name),
                    };
                }
            }
        }
    }
    live
}

fn some_settings() -> impl Strategy<Value = BTreeMap<String, String>> {
    prop::collection::btree_map("[a-c]", "[1-3]", 0..3)
}

fn some_resources() -> impl Strategy<Value = Vec<Resource>> {
    let kind = prop::sample::select(vec![Kind::Topic, Kind::Acl, Kind::User, Kind::Queue]);
    let one = (kind, "[a-d]", some_settings())
        .prop_map(|(kind, name, settings)| Resource::new(kind, name, settings));
    prop::collection::vec(one, 0..8).prop_map(|all| {
        let mut kept: Vec<Resource> = Vec::new();
        for one in all {
            if !kept.iter().any(|other| other.identity() == one.identity()) {
                kept.push(one);
            }
        }
        kept
    })
}

proptest! {
    #[test]
    fn applied_twice_is_applied_once_and_nothing_unnamed_changes(
        live in some_resources(),
        file in some_resources(),
        defaults in prop::collection::btree_set("[a-c]", 0..2),
    ) {
        let file: Vec<WantedResource> = file
            .iter()
            .map(|resource| {
                let mut settings: BTreeMap<_, _> =
                    resource.settings.iter().map(|(name, value)| (name.clone(), Some(value.clone()))).collect();
                if resource.kind == Kind::Topic {
                    settings.extend(defaults.iter().map(|name| (name.clone(), None)));
                }
                WantedResource { kind: resource.kind, name: resource.name.clone(), settings }
            })
            .collect();
        let before = look(live);
        let first = planned(&file, &before, &[], &[]);
        let after = play(&first, &before);
        prop_assert!(planned(&file, &after, &[], &[]).changes.is_empty(), "a second plan is empty");
        prop_assert!(first.changes.iter().all(|change| change.act != ChangeAct::Remove));
        for resource in &before.resources {
            let now = after.resources.iter().find(|now| now.identity() == resource.identity());
            let now = now.expect("nothing is removed");
            let named = file.iter().find(|wanted| wanted.resource().identity() == resource.identity());
            for (name, value) in &resource.settings {
                if named.is_none_or(|wanted| !wanted.settings.contains_key(name)) {
                    prop_assert_eq!(now.settings.get(name), Some(value));
                }
            }
        }
    }
}
