//! SIGHUP: limits, topics, content types and schemas change while requests come in.

use crate::rig::Rig;
use rustix::process::Signal;

const LIMITED: &str = "limit = { rate_per_s = 0.001, burst = 2 }\nbounds = { body_bytes_max = 1000 }\n";
const WIDER: &str = "limit = { rate_per_s = 0.001, burst = 50 }\nbounds = { body_bytes_max = 2000 }\n";

fn topics(more: &str) -> String {
    format!("[[gateway.topic]]\ntopic = \"raw\"\nkey = \"client\"\n{more}")
}

#[test]
fn limits_topics_and_sizes_change_while_it_runs() {
    let rig = Rig::start(&format!("{LIMITED}{}", topics("")));
    let url = rig.url();
    let key = rig.key("acme", &[]);
    let json = [("content-type", "application/json")];
    assert_eq!(rig.post("raw", &key, "1").status, 202);
    assert_eq!(rig.post("raw", &key, "2").status, 202);
    assert_eq!(rig.post("raw", &key, "3").status, 429);
    assert_eq!(rig.post("more", &key, "3").status, 404);
    assert_eq!(rig.post_with("raw", &key, &json, &b" ".repeat(1_500)).status, 413);
    // A limit that is raised is in force at once, also for whoever was refused a moment ago.
    let more = "content_types = [\"application/json\"]\n[[gateway.topic]]\ntopic = \"more\"\n";
    rig.reload(&url, &format!("{WIDER}{}", topics(more)), "SIGHUP: gateway.limit.burst: 2 → 50");
    rig.until("the limit is another one", || rig.post("raw", &key, "4").status == 202);
    assert_eq!(rig.post("more", &key, "5").status, 202, "a new topic");
    assert_eq!(rig.post_with("raw", &key, &json, &b"1".repeat(1_500)).status, 202, "a larger body");
    let answer = rig.post_with("raw", &key, &[("content-type", "text/plain")], b"6");
    assert_eq!((answer.status, answer.code().as_str()), (415, "gateway.content_type"));
    // What is wrong changes nothing, and is told.
    rig.reload(&url, &format!("{WIDER}{}tpoic = 1\n", topics(more)), "tpoic");
    assert_eq!(rig.post("more", &key, "7").status, 202);
    // A topic that is gone is gone.
    rig.reload(&url, &format!("{WIDER}{}", topics("types = [\"a\"]\n")), "types");
    rig.until("the topic is gone", || rig.post("more", &key, "8").status == 404);
    let answer = rig.post("raw", &key, "9");
    assert_eq!((answer.status, answer.code().as_str()), (422, "gateway.type"));
    let metrics = rig.daemon.get("/metrics").1;
    assert!(metrics.contains("posthaste_gateway_requests_total"), "{metrics}");
}

/// A route takes effect at the next start, and so do the topics that need it: 202 would be a dead letter.
#[test]
fn a_topic_waits_for_its_route() {
    let route = |topic: &str| {
        format!(
            "[sinks.out]\ntype = \"null\"\n[[route]]\nname = \"r-{topic}\"\ntopic = \"{topic}\"\nsink = \"out\"\n"
        )
    };
    let rig = Rig::start(&format!("{LIMITED}{}{}", topics(""), route("raw")));
    let key = rig.key("acme", &[]);
    let more = "[[gateway.topic]]\ntopic = \"more\"\n";
    let both = format!("{}[[route]]\nname = \"new\"\ntopic = \"more\"\nsink = \"out\"\n", route("raw"));
    let said = "the gateway goes on with the topics of before";
    rig.reload(&rig.url(), &format!("{WIDER}{}{both}", topics(more)), said);
    assert_eq!(rig.post("more", &key, "1").status, 404);
    assert_eq!(rig.post("raw", &key, "2").status, 202);
    let dead = rig.cli(&["dead", "list", "--json"]).ok().json();
    assert_eq!(dead["dead"].as_array().map(Vec::len), Some(0), "{dead}");
}

/// What takes another start is said to take one.
#[test]
fn what_takes_a_restart_is_told() {
    let rig = Rig::start(LIMITED);
    let file = rig.dir.join("posthaste.toml");
    let text = std::fs::read_to_string(&file).expect("it is there");
    let text = text.replace("body_bytes_max = 1000", "body_bytes_max = 1000, requests_max = 2048");
    std::fs::write(&file, text).expect("it can be written");
    rig.daemon.signal(Signal::HUP);
    rig.daemon.says("takes effect at the next start: gateway.bounds.requests_max: 1024 → 2048");
}
