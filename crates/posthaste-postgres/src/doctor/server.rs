//! The server: what it is, and how it is set.

use super::{Bounds, CheckResult, Exam, fail, list, ok, warn};
use crate::error::describe;
use crate::session::SqlResult;
use posthaste::clock::{Clock, SystemClock};
use posthaste::sink::Level;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

/// What the server says about itself.
#[derive(Debug, Clone)]
pub(super) struct Server {
    version: String,
    number: i32,
    standby: bool,
    read_only: bool,
    encoding: String,
    fsync: bool,
    full_page_writes: bool,
    autovacuum: bool,
    prepared_max: i32,
    synchronous_commit: String,
    asynchronous: Vec<String>,
}

/// The server, if there is a point in looking further.
///
/// `durable` is why commits that are asynchronous by default do no harm, if there is a reason.
pub(super) async fn examine(exam: &mut Exam, durable: Option<&str>) -> Option<Server> {
    let before = SystemClock.now();
    let rows = match exam.query(include_str!("../../sql/doctor/server.sql"), &[]).await {
        Ok(rows) => rows,
        Err(error) => {
            exam.note("server_kind", fail(format!("the server cannot be examined: {}", describe(&error))));
            return None;
        }
    };
    let after = SystemClock.now();
    let row = rows.first()?;
    let server = Server::of(row);
    let halfway = before.plus_micros((after.0 - before.0) / 2);
    let skew_seconds = halfway.seconds_since(posthaste::Timestamp(row.get("now")));
    exam.note("server_version", server.is_new_enough());
    exam.note("server_kind", server.is_postgres());
    exam.note("standby", server.is_primary());
    exam.note("read_only", server.is_writable());
    let functions = has_functions(exam).await;
    exam.note_result("functions", functions);
    exam.note("encoding", server.is_utf8());
    exam.note("synchronous_commit", server.commits_synchronously(durable));
    exam.note("fsync", server.syncs());
    exam.note("full_page_writes", server.writes_full_pages());
    let vacuums = vacuums(exam, server.autovacuum).await;
    exam.note_result("autovacuum", vacuums);
    exam.note("clock_skew", clocks_agree(skew_seconds, &exam.bounds));
    let hopeless = [server.is_new_enough(), server.is_postgres(), server.is_primary()];
    hopeless.iter().all(|(level, _)| *level == Level::Ok).then_some(server)
}

impl Server {
    fn of(row: &Row) -> Self {
        Self {
            version: row.get("version"),
            number: row.get("number"),
            standby: row.get("standby"),
            read_only: row.get("read_only"),
            encoding: row.get("encoding"),
            fsync: row.get("fsync"),
            full_page_writes: row.get("full_page_writes"),
            autovacuum: row.get("autovacuum"),
            prepared_max: row.get("prepared_max"),
            synchronous_commit: row.get::<_, Option<String>>("synchronous_commit").unwrap_or_default(),
            asynchronous: row.get("asynchronous"),
        }
    }

    fn is_new_enough(&self) -> CheckResult {
        if self.number >= 140_000 {
            return ok(self.version.clone());
        }
        fail(format!(
            "{}: PostgreSQL 14 or newer is needed, older ones lack the snapshots that the log is read by. \
             Nothing can be delivered; upgrade the server",
            self.version
        ))
    }

    fn is_postgres(&self) -> CheckResult {
        match ["Yugabyte", "Cockroach", "Greenplum", "Redshift"]
            .iter()
            .find(|name| self.version.contains(*name))
        {
            None => ok("PostgreSQL"),
            Some(name) => fail(format!(
                "this is {name}, which only looks like PostgreSQL: its snapshots and sequences do not give the order that \
                 the log rests on, and events would be skipped. Use PostgreSQL 14 or newer"
            )),
        }
    }

    fn is_primary(&self) -> CheckResult {
        if !self.standby {
            return ok("a primary");
        }
        fail(
            "this server is a standby. Its snapshots list no running transactions, so a relay that read from it would skip \
             events, and a consumer could mark nothing; both refuse it. Point the URL at the primary",
        )
    }

    fn is_writable(&self) -> CheckResult {
        if !self.read_only || self.standby {
            return ok("transactions may write");
        }
        fail(
            "transactions are read-only by default here (default_transaction_read_only): nothing can be settled or marked, so \
             every event would be sent again and again, and no message be handled. Switch it off for this role and database",
        )
    }

    fn is_utf8(&self) -> CheckResult {
        if self.encoding == "UTF8" {
            return ok("UTF8");
        }
        warn(format!(
            "the database is encoded in {}: a topic, key or header that is no UTF-8 cannot be read, and the lane stops at it. \
             Use a database with encoding UTF8, or make sure that those texts are ASCII",
            self.encoding
        ))
    }

    fn commits_synchronously(&self, durable: Option<&str>) -> CheckResult {
        let mut places = self.asynchronous.clone();
        if self.synchronous_commit == "off" {
            places.push("this role or the server".to_owned());
        }
        if places.is_empty() {
            return ok("commits are durable by default");
        }
        let found = format!("synchronous_commit is off for {}", list(&places));
        if let Some(why) = durable {
            return ok(format!("{found}; {why}"));
        }
        warn(format!(
            "{found}: the last events before a crash of the server may be published and then be gone from the database. \
             Settlements are not touched by it. Set flush_before_publish, or synchronous_commit on"
        ))
    }

    fn syncs(&self) -> CheckResult {
        if self.fsync {
            return ok("on");
        }
        warn(
            "fsync is off: a crash of the machine can corrupt the database, and events that were appended or settled are lost \
             with it. Switch it on",
        )
    }

    fn writes_full_pages(&self) -> CheckResult {
        if self.full_page_writes {
            return ok("on");
        }
        warn(
            "full_page_writes is off: a crash of the machine can leave torn pages, and with them lost or damaged events. \
             Switch it on, unless the storage writes pages atomically",
        )
    }

    /// Applications that use two-phase commit cannot append while a relay sleeps: NOTIFY refuses to be
    /// prepared.
    pub(super) fn allows_wakeups(&self, notifies: bool) -> CheckResult {
        match (self.prepared_max > 0, notifies) {
            (false, _) => ok("prepared transactions are off"),
            (true, false) => ok("prepared transactions are on, wakeups are off"),
            (true, true) => warn(
                "prepared transactions are possible here, and appends wake relays by NOTIFY, which cannot be prepared: a \
                 PREPARE TRANSACTION that appended while a relay sleeps fails. If applications use two-phase commit, set \
                 wakeups = false; otherwise ignore this, or set max_prepared_transactions = 0",
            ),
        }
    }
}

async fn has_functions(exam: &mut Exam) -> SqlResult<CheckResult> {
    let rows = exam.query(include_str!("../../sql/doctor/functions.sql"), &[]).await?;
    let missing: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    Ok(if missing.is_empty() {
        ok("the server's own that the log is read by can be called")
    } else {
        fail(format!(
            "the role cannot call {}: the log cannot be read or appended to without it. Grant EXECUTE on it",
            list(&missing)
        ))
    })
}

async fn vacuums(exam: &mut Exam, is_on: bool) -> SqlResult<CheckResult> {
    let schema = exam.sessions.config().schema.clone();
    let rows =
        exam.query(include_str!("../../sql/doctor/no_autovacuum.sql"), &[(&schema, Type::TEXT)]).await?;
    let tables: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    let place = match (is_on, tables.is_empty()) {
        (true, true) => return Ok(ok("on")),
        (false, _) => "the whole server".to_owned(),
        (true, false) => list(&tables),
    };
    Ok(warn(format!(
        "autovacuum is off for {place}: leases, deferred events and dead letters leave dead rows behind, and delivery gets \
         slower and slower. Switch it on"
    )))
}

/// Half of a round trip is the error of this measurement; it is far below the bound.
fn clocks_agree(skew_seconds: f64, bounds: &Bounds) -> CheckResult {
    if skew_seconds.abs() <= bounds.clock_skew.as_secs_f64() {
        return ok(format!("this host and the database differ by {:.3} s", skew_seconds.abs()));
    }
    let way = if skew_seconds > 0.0 { "ahead of" } else { "behind" };
    warn(format!(
        "this host's clock is {:.1} s {way} the database's: latencies in metrics and logs are off by that much. Delivery is \
         not touched, leases and due times go by the database's clock. Synchronise the clocks (NTP)",
        skew_seconds.abs()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sound() -> Server {
        Server {
            version: "PostgreSQL 15.18 on x86_64".to_owned(),
            number: 150_018,
            standby: false,
            read_only: false,
            encoding: "UTF8".to_owned(),
            fsync: true,
            full_page_writes: true,
            autovacuum: true,
            prepared_max: 0,
            synchronous_commit: "on".to_owned(),
            asynchronous: Vec::new(),
        }
    }

    #[test]
    fn servers_that_nobody_has_at_hand_are_told_apart() {
        assert_eq!(sound().is_new_enough().0, Level::Ok);
        assert_eq!(Server { number: 130_014, ..sound() }.is_new_enough().0, Level::Fail);
        let text = |text: &str| Server { version: text.to_owned(), ..sound() };
        assert_eq!(sound().is_postgres().0, Level::Ok);
        assert_eq!(text("PostgreSQL 15.2-YB-2.25.0 (YugabyteDB)").is_postgres().0, Level::Fail);
        assert_eq!(text("CockroachDB CCL v24.1").is_postgres().0, Level::Fail);
    }

    #[test]
    fn clocks_may_differ_a_little() {
        let bounds = Bounds::default();
        assert_eq!(clocks_agree(0.0, &bounds).0, Level::Ok);
        assert_eq!(clocks_agree(-1.9, &bounds).0, Level::Ok);
        assert_eq!(clocks_agree(2.1, &bounds).0, Level::Warn);
        assert!(clocks_agree(-30.0, &bounds).1.contains("30.0 s behind"));
    }

    #[test]
    fn an_asynchronous_application_is_fine_if_the_relay_flushes() {
        let server = Server { asynchronous: vec!["role shop".to_owned()], ..sound() };
        assert_eq!(server.commits_synchronously(None).0, Level::Warn);
        assert_eq!(server.commits_synchronously(Some("it flushes")).0, Level::Ok);
    }
}
