//! A ledger that cannot fail would say nothing: each damage to the files must show.

use crate::ground::{FEW, Ground};
use rusqlite::Connection;
use std::path::Path;

/// What is done to which file, and the line of the ledger that must see it.
const DAMAGES: [(&str, &str, &str); 18] = [
    ("orders.db", "delete from orders where id = 'order-000002'", "G1"),
    ("orders.db", "update orders set steps = steps + 1 where id = 'order-000002'", "G1"),
    ("orders.db", "insert into rolled_back (tx, event_id) select 1, id from posthaste_outbox where seq = 5", "G1"),
    ("orders.db", "delete from posthaste_dead_letters", "G2"),
    ("orders.db", "insert into posthaste_outbox (topic, key, payload) values ('orders.paid', 'order-000002', '{}')", "G2"),
    ("broker/broker.db", "delete from messages where place = (select min(place) from messages)", "G2"),
    ("broker/broker.db", "update messages set id = zeroblob(16) where place = (select max(place) from messages)", "G2"),
    (
        "broker/broker.db",
        "create temp table pair as
           select key, min(place) as a, max(place) as b from messages group by key having count(*) > 1 limit 1;
         create temp table ids as select place, id from messages where place in (select a from pair union select b from pair);
         update messages set id = (select id from ids where ids.place <> messages.place)
          where place in (select place from ids);",
        "G3",
    ),
    (
        "billing.db",
        "create temp table pair as
           select min(n) as a, max(n) as b from bookings group by order_id having count(*) > 1 limit 1;
         create temp table ids as select n, event_id from bookings where n in (select a from pair union select b from pair);
         update bookings set event_id = (select event_id from ids where ids.n <> bookings.n) where n in (select n from ids);",
        "G3",
    ),
    ("billing.db", "delete from bookings where n = 7", "G5"),
    ("billing.db", "insert into bookings (event_id, order_id, cents, attempt) select event_id, order_id, cents, 1 from bookings where n = 7", "G5"),
    ("billing.db", "update accounts set cents = cents + 1 where rowid = 1", "G5"),
    ("billing.db", "delete from posthaste_inbox_dead_letters", "G2"),
    ("billing.db", "delete from posthaste_inbox where message_id = (select event_id from bookings where n = 7)", "G6"),
    ("billing.db", "update posthaste_inbox set outcome = 'w' where message_id = (select event_id from bookings where n = 7)", "G6"),
    ("billing.db", "update posthaste_inbox set outcome = 'd' where outcome = 'x'", "G6"),
    ("billing.db", "update posthaste_inbox_partitions set clean = 0", "G8"),
    ("orders.db", "update posthaste_lanes set owner = 'somebody' where sink = 'local'", "G8"),
];

#[test]
fn every_damage_shows() {
    let ground = Ground::new();
    let kept = ground.path("kept");
    let run = ground.demo(&[&FEW[..], &["--keep", kept.to_str().expect("UTF-8")]].concat()).output();
    assert_eq!(run.expect("the binary starts").status.code(), Some(0));
    let audit = |dir: &Path| {
        let output =
            ground.demo(&["--audit", dir.to_str().expect("UTF-8")]).output().expect("the binary starts");
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, said) = audit(&kept);
    assert!(code == Some(0) && said.contains("It balances."), "{said}");
    for (index, (file, sql, guarantee)) in DAMAGES.iter().enumerate() {
        let copy = ground.path(&format!("copy-{index}"));
        copy_all(&kept, &copy);
        Connection::open(copy.join(file)).and_then(|file| file.execute_batch(sql)).expect(sql);
        let (code, said) = audit(&copy);
        assert!(code == Some(1) && said.contains("It does NOT balance"), "{sql}: {said}");
        let wrong = |line: &str| line.trim_start().starts_with(guarantee) && line.ends_with("WRONG");
        assert!(said.lines().any(wrong), "{sql}: {guarantee} must be wrong:\n{said}");
    }
}

fn copy_all(from: &Path, to: &Path) {
    std::fs::create_dir(to).expect("made");
    for entry in std::fs::read_dir(from).expect("there").flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_all(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).expect("copied");
        }
    }
}
