//! What goes wrong around `apply`: nodes die, answers are lost, certificates are wrong. Whatever happens, the
//! next plan shows the rest, and nobody lacks a right in between that he has before and afterwards.

use crate::desk::{Desk, Ended};
use crate::fort::{Fort, WAIT};
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::require_service;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// How long each direction of the slow line takes.
const DELAY: Duration = Duration::from_millis(300);

fn topic(name: &str, retention: &str) -> String {
    format!("[[topic]]\nname = \"{name}\"\npartitions = 2\nreplicas = 2\nretention = \"{retention}\"\n")
}

fn principal(name: &str, read: &str) -> String {
    let groups = format!("groups = [\"{name}\"]\nexclusive = true\n");
    format!("[[principal]]\nname = \"{name}\"\nread = [\"{read}\"]\n{groups}")
}

/// What one has before an apply that is disturbed, and what one wants afterwards: a topic, a setting, and a
/// wider right instead of a narrow one.
fn files(name: &str) -> [String; 2] {
    let before = topic(&format!("{name}.old"), "7d") + &principal(name, &format!("{name}.old"));
    let after = topic(&format!("{name}.old"), "8d") + &topic(&format!("{name}.new"), "7d");
    [before, after + &principal(name, &format!("{name}.*"))]
}

/// Runs `apply` where waiting is allowed.
async fn apply(desk: &Arc<Desk>, crash: &str, who: &str) -> Ended {
    let (desk, crash) = (Arc::clone(desk), crash.to_owned());
    let allowed = format!("acl:User:{who}");
    let run = move || desk.dying(&crash, &["apply", "--yes", "--allow-destroy", &allowed]);
    tokio::task::spawn_blocking(run).await.expect("no panic")
}

/// Looks at the rights again and again while something happens. One of each set is there all the time.
async fn watched<T>(fort: &Fort, sets: &[[String; 2]], happens: impl Future<Output = T>) -> T {
    let is_right =
        |rights: &BTreeSet<String>| sets.iter().all(|set| set.iter().any(|it| rights.contains(it)));
    let watch = async {
        loop {
            // A cluster without a controller may not answer.
            if let Ok(rights) = fort.kafka.read().await.rights().await {
                assert!(is_right(&rights), "one of {sets:?} is missing in {rights:#?}");
            }
        }
    };
    tokio::select! {
        done = happens => done,
        () = watch => unreachable!("it looks for ever"),
    }
}

/// Rights of which one is there before, while and after the wider one takes the narrow one's place.
fn kept(name: &str) -> [[String; 2]; 2] {
    let narrow = format!("User:{name} * READ ALLOW TOPIC {name}.old LITERAL");
    let wide = format!("User:{name} * READ ALLOW TOPIC {name}. PREFIXED");
    let group = format!("User:{name} * READ ALLOW GROUP {name} LITERAL");
    [[narrow, wide], [group.clone(), group]]
}

/// Everything is as the file says, and a plan is empty.
async fn assert_done(fort: &Fort, desk: &Desk, name: &str) {
    desk.topology(&["check"]).ends(0);
    let kafka = fort.kafka.read().await;
    let [[_, wide], [group, _]] = kept(name);
    let of_name = format!("User:{name} ");
    let expected = (Some("691200000".to_owned()), true, BTreeSet::from([wide, group]));
    // The witness asks another broker, which may know it a moment later.
    eventually("the witness sees it", WAIT, || async {
        let mut settings = kafka.settings_of(&format!("{name}.old")).await.expect("settings");
        let is_made = kafka.topics().await.expect("topics").contains(&format!("{name}.new"));
        let mut rights = kafka.rights().await.expect("rights");
        rights.retain(|right| right.starts_with(&of_name));
        ((settings.remove("retention.ms"), is_made, rights) == expected).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_dies_meanwhile_costs_nobody_a_right() {
    let (fort, _turn) = require_service!(Fort::enter().await);
    // Before the first request, and when some are made.
    for (name, point, is_controller) in [("c", "topology.begin@1", true), ("n", "topology.sent@2", false)] {
        let [before, after] = files(name);
        let desk = Arc::new(Desk::new());
        let table = fort.table("LINK", None, None).await;
        desk.write("topology.toml", &format!("{before}{table}"));
        desk.topology(&["apply", "--yes"]).ends(0);
        desk.write("topology.toml", &format!("{after}{table}"));
        let (victim, pid) = {
            let kafka = fort.kafka.read().await;
            let controller = kafka.controller().await.expect("a controller");
            let is_meant = |id: u32| (id == controller) == is_controller;
            let node = kafka.nodes().iter().find(|node| is_meant(node.id())).expect("three nodes");
            (node.id(), node.pid().expect("it runs"))
        };
        let ended = watched(fort, &kept(name), apply(&desk, &format!("{point}:{pid}"), name)).await;
        eprintln!("{point}, node {victim}: {}{}", ended.out, ended.err);
        assert!([0, 1].contains(&ended.code), "{ended:?}");
        let again = async {
            let mut kafka = fort.kafka.write().await;
            kafka.node_mut(victim).kill9().await.expect("it is gone");
            kafka.node_mut(victim).start_again().await.expect("started");
            drop(kafka);
            apply(&desk, "", name).await
        };
        watched(fort, &kept(name), again).await.ends(0);
        assert_done(fort, &desk, name).await;
    }
}

/// The answer of a request is lost. Whether it was carried out is looked up.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_is_looked_up() {
    let (fort, _turn) = require_service!(Fort::enter().await);
    for (name, is_half_open) in [("cut", false), ("half", true)] {
        let [before, after] = files(name);
        let desk = Arc::new(Desk::new());
        let table = fort.table("LINK", None, None).await;
        desk.write("topology.toml", &format!("{before}{table}"));
        desk.topology(&["apply", "--yes"]).ends(0);
        desk.write("topology.toml", &format!("{after}{table}"));
        let kafka = fort.kafka.read().await;
        let links: Vec<_> = kafka.nodes().iter().map(|node| node.proxy("LINK")).collect();
        for link in &links {
            link.delay(DELAY).await;
        }
        let disturbed = async {
            let new = format!("{name}.new");
            eventually("the topic is made", WAIT, || async {
                kafka.topics().await.expect("topics").contains(&new).then_some(())
            })
            .await;
            // The answer is still on its way.
            for link in &links {
                if is_half_open { link.half_open().await } else { link.cut().await }
            }
            if is_half_open {
                tokio::time::sleep(DELAY * 2).await; // pace: the answer falls due, and is dropped
            }
            for link in &links {
                link.pass().await;
            }
        };
        let (ended, ()) = tokio::join!(apply(&desk, "", name), disturbed);
        assert!(ended.code == 0 && ended.out.contains("4 changes were made"), "{name}: {ended:?}");
        assert_done(fort, &desk, name).await;
    }
}

/// F29: whom we do not trust, and who does not trust us, is said with the name of the file.
#[tokio::test(flavor = "multi_thread")]
async fn f29_a_wrong_certificate_is_refused_with_its_file() {
    let (fort, _turn) = require_service!(Fort::enter().await);
    let certs = &fort.certs;
    let (ca, other) = (certs.ca(), certs.other_ca());
    let pair = certs.client("admin").expect("a certificate");
    let expired = certs.expired_client("admin").expect("a certificate");
    let stranger = certs.stranger("admin").expect("a certificate");
    let at = |path: &std::path::Path| path.display().to_string();
    for (listener, ca, pair, words) in [
        ("MTLS", Some(other), Some(&pair), at(other)),
        ("EXPIRED", Some(ca), None, at(ca)),
        ("ELSEWHERE", Some(ca), None, at(ca)),
        ("MTLS", Some(ca), Some(&expired), at(&expired.certificate)),
        ("MTLS", Some(ca), Some(&stranger), at(&stranger.certificate)),
        ("MTLS", Some(ca), None, "no cert_file".to_owned()),
        ("MTLS", None, None, "TLS is not asked for".to_owned()),
    ] {
        let desk = Desk::new();
        desk.write("topology.toml", &(topic("unseen", "1d") + &fort.table(listener, ca, pair).await));
        let said = desk.topology(&["check"]).ends(1);
        assert!(said.contains(&words), "{listener}: {words} is not in {said}");
    }
    let desk = Desk::new();
    desk.write("topology.toml", &(topic("unseen", "1d") + &fort.table("EXPIRED", Some(ca), None).await));
    assert!(desk.topology(&["apply", "--yes"]).ends(1).contains("nothing was done"));
    assert!(!fort.kafka.read().await.topics().await.expect("topics").contains("unseen"));
}
