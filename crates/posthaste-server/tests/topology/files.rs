//! Files that are wrong: a line and a sentence, before any broker is asked.

use crate::desk::Desk;

/// Nobody listens there.
const NOWHERE: &str = "127.0.0.1:1";

#[track_caller]
fn refused(text: &str, words: &[&str]) {
    let desk = Desk::with_file(NOWHERE, text);
    let said = desk.topology(&["plan"]).ends(2);
    for words in words {
        assert!(said.contains(words), "{words:?} is not in:\n{said}");
    }
}

#[test]
fn a_mistake_has_its_line_and_a_sentence() {
    refused(
        "[[topic]]\nname = \"a\"\npartition = 3",
        &["topology.toml line 3", "did you mean `partitions`?"],
    );
    refused("[[topic]]\nname = \"a\"", &["line 1", "needs partitions, here or in topic_defaults"]);
    let topic = |more: &str| format!("[[topic]]\nname = \"a\"\npartitions = 3\nreplicas = 1\n{more}");
    refused(&topic("retention = \"7 days\""), &["line 5", "is no duration: write 7d"]);
    refused(&topic("min_insync_replicas = 2"), &["line 5", "nothing would be accepted"]);
    refused(&topic("compression = \"rar\""), &["line 5", "is no compression"]);
    refused(&topic("retention = \"1d\"\nsettings = { \"retention.ms\" = 5 }"), &["line 6", "is said twice"]);
    refused(&format!("{}\n{}", topic(""), topic("")), &["line 6", "is described twice", "topic[0]"]);
    refused("[[user]]\nname = \"u\"", &["line 1", "has no password: say password_file"]);
    refused("[[user]]\nname = \"u\"\npassword_file = \"gone\"", &["line 3", "gone"]);
    refused(
        "[[acl]]\nprincipal = \"p\"\noperations = [\"EAT\"]\nresource = \"topic\"\nname = \"t\"",
        &["line 3", "EAT"],
    );
    refused("[[stream]]\nname = \"S\"\nsubjects = [\"a\"]", &["no broker of type nats"]);
    refused(
        "[[topic]]\nbroker = \"else\"\nname = \"a\"\npartitions = 1\nreplicas = 1",
        &["line 2", "no broker `else`"],
    );
    refused("topic = 7", &["line 1", "`topic`"]);
    refused("= nonsense", &["line 1", "this is not TOML"]);
}

#[test]
fn names_that_no_broker_takes_are_refused() {
    let topic = |name: &str| format!("[[topic]]\nname = {name}\npartitions = 1\nreplicas = 1");
    for bad in
        ["\"\"", "\".\"", "\"..\"", "\"a b\"", "\"a\\u0000b\"", "\"a\\nb\"", "\"ñ\"", "\"a/b\"", "\"a'b\""]
    {
        refused(&topic(bad), &["line 2"]);
    }
    refused(&topic(&format!("\"{}\"", "x".repeat(250))), &["line 2"]);
    let desk = Desk::with_file(NOWHERE, &topic(&format!("\"{}\"", "x".repeat(249))));
    let said = desk.topology(&["check"]).ends(1);
    assert!(said.contains(NOWHERE), "249 bytes are a name; the broker is not there: {said}");
    refused("[[principal]]\nname = \"a\\u0007\"\nread = [\"t\"]", &["line 2", "control characters"]);
}

#[test]
fn a_reader_without_a_group_is_warned_of() {
    let desk = Desk::with_file(NOWHERE, "[[principal]]\nname = \"p\"\nread = [\"t\"]");
    let said = desk.topology(&["plan"]).ends(1);
    assert!(said.contains("warning: topology.toml line 1: `p` may read and is in no group"), "{said}");
}

#[test]
fn brokers_that_need_nothing_say_so() {
    let desk = Desk::new();
    desk.write("topology.toml", "[brokers.r]\ntype = \"redis\"\nurl = \"redis://127.0.0.1:1\"\n");
    let said = desk.topology(&["plan"]).ends(2);
    assert!(said.contains("line 2") && said.contains("a stream is made by its first entry"), "{said}");
    desk.write("topology.toml", "");
    assert!(desk.topology(&["plan"]).ends(2).contains("the file has no broker"));
    std::fs::remove_file(desk.path("topology.toml")).expect("removed");
    assert!(desk.topology(&["plan"]).ends(2).contains("there is no topology.toml here"));
}

/// Ten megabytes of rights are read, and asked for by nobody in vain.
#[test]
fn a_large_file_is_no_trouble() {
    use std::fmt::Write as _;
    let mut text = String::new();
    for n in 0..30_000 {
        let name =
            format!("service-{n:06}-of-the-department-of-names-that-are-as-long-as-certificates-have-them");
        let _ = writeln!(
            text,
            "[[principal]]\nname = \"CN={name},OU=Payments, Billing\\\\,O=x\"\nread = [\"a{n}.*\"]\nwrite = [\"b{n}\"]\ngroups = [\"g{n}\"]\n"
        );
    }
    let desk = Desk::with_file(NOWHERE, &text);
    assert!(desk.read("topology.toml").len() > 5 << 20);
    let said = desk.topology(&["check"]).ends(1);
    assert!(said.contains(NOWHERE), "{said}");
}

#[test]
fn the_environment_lays_over_the_file() {
    let mut desk = Desk::with_file("127.0.0.1:2", "[[user]]\nname = \"u\"");
    desk.env("POSTHASTE_TOPOLOGY__BROKERS__KAFKA__URL", NOWHERE);
    desk.env("POSTHASTE_TOPOLOGY__USER__0__PASSWORD", "hunter2");
    let said = desk.topology(&["plan"]).ends(1);
    assert!(said.contains(NOWHERE) && !said.contains("hunter2"), "{said}");
    desk.env("POSTHASTE_TOPOLOGY__BROKER__X", "y");
    assert!(desk.topology(&["plan"]).ends(2).contains("did you mean `brokers`?"));
}

#[test]
fn the_schema_knows_every_table() {
    let text = Desk::new().topology(&["schema"]).ends(0);
    let schema: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    for table in [
        "brokers",
        "topic_defaults",
        "topic",
        "principal",
        "acl",
        "user",
        "stream",
        "exchange",
        "queue",
        "binding",
    ] {
        assert!(schema["properties"][table].is_object(), "{table}");
    }
    assert!(schema["properties"]["brokers"]["additionalProperties"].to_string().contains("sasl_url"));
}
