//! With `--gateway` the orders are handed in by HTTP: limits, repetitions, a gateway that is killed.

use crate::ground::{FEW, Ground};
use rusqlite::Connection;

/// What is done to which file, and the line of the ledger that must see it.
const DAMAGES: [(&str, &str, &str); 5] = [
    ("till.db", "delete from handed_in where n = 7", "W1"),
    ("till.db", "insert into handed_in (event_id, replayed) values ('01890000-0000-7000-8000-000000000000', 0)", "W1"),
    ("till.db", "insert into handed_in (event_id, replayed) select event_id, 0 from handed_in where n = 7", "W4"),
    (
        "orders.db",
        "insert into posthaste_outbox (topic, key, headers, payload)
         select topic, key, headers, payload from posthaste_outbox where seq = 7",
        "W4",
    ),
    (
        "orders.db",
        "attach 'KEPT/till.db' as till;
         update posthaste_gateway_requests set key = (select event_id from till.rolled_back where tx = 429 limit 1)
          where key = (select key from posthaste_gateway_requests limit 1)",
        "W2",
    ),
];

#[test]
fn orders_by_http_are_there_once_and_what_was_refused_is_not() {
    let ground = Ground::new();
    let kept = ground.path("kept");
    let dir = kept.to_str().expect("UTF-8");
    let args = [&FEW[..], &["--gateway", "--seed", "4", "--keep", dir]].concat();
    let output = ground.demo(&args).output().expect("the binary starts");
    let out = String::from_utf8(output.stdout).expect("UTF-8");
    assert_eq!(output.status.code(), Some(0), "{out}{}", String::from_utf8_lossy(&output.stderr));
    let story = [
        "[gateway]",
        "W1 W2  Orders are handed in by HTTP",
        "An event of shop:order-",
        "W2 W3  Tenant rush may hand in 10 orders, and tries 60: 10 are answered with 202, 50 with 429",
        "The broker goes away",
        "Orders commit as before:",
        "is killed by SIGKILL",
        "W1 W4  The gateway died with it, while a request of the shop was under way.",
        "G2 G4  A new relay",
        "G5     A new consumer",
        "G2     All 310 events",
        "W1  answered with 202: 310 events; lost 0; stored without it 0",
        "with 429 another 50; of them stored 0",
        "stored twice 0",
        "committed 310 = delivered 309 + dead 1",
        "It balances.",
        "--key shop:order-000002",
    ];
    let text = out.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut rest = text.as_str();
    for words in story {
        let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
        let at = rest.find(&words).unwrap_or_else(|| panic!("{words:?} is not in its place:\n{out}"));
        rest = &rest[at + words.len()..];
    }
    let (_, again) = text.split_once("events handed in again ").expect("it was counted");
    assert!(!again.starts_with("0;"), "no answer was lost on purpose: {again}");
    assert_eq!(ground.children(), [0u32; 0], "nothing is left running");
    for (file, sql, promise) in DAMAGES {
        let copy = kept.join(format!("{file}.before"));
        std::fs::copy(kept.join(file), &copy).expect("copied");
        let sql = sql.replace("KEPT", dir);
        Connection::open(kept.join(file)).and_then(|file| file.execute_batch(&sql)).expect(&sql);
        let audit = ground.demo(&["--audit", dir]).output().expect("the binary starts");
        let said = String::from_utf8_lossy(&audit.stdout).into_owned();
        let wrong = |line: &str| line.trim_start().starts_with(promise) && line.ends_with("WRONG");
        assert!(audit.status.code() == Some(1) && said.lines().any(wrong), "{sql}: {promise}:\n{said}");
        std::fs::copy(&copy, kept.join(file)).expect("as before");
    }
}

/// The dashboard's orders come by HTTP, too.
#[test]
fn orders_go_on_behind_the_story_until_their_time_is_over() {
    let ground = Ground::new();
    let output = ground.demo(&["--gateway", "--events", "100", "--ui", "--minutes", "0"]).output();
    let output = output.expect("the binary starts");
    let (out, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{out}{said}");
    assert!(out.contains("#code=") && out.contains("It balances."), "{out}{said}");
    assert_eq!((ground.children().len(), ground.files().len()), (0, 0), "nothing is left");
}
