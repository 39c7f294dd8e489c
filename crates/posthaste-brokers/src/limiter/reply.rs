//! What the server's answers mean for a tenant: pure, so that each row can be read and tested.
//!
//! The one question is whose fault it is. An error that every tenant would get is a loss of the limiter, and
//! its breaker counts it. An error of one row is that tenant's alone: one odd row must not open the breaker
//! for everybody.

use crate::redis::ErrorReply;
use ::redis::Value;
use posthaste::intake::LimitDecision;
use std::time::Duration;

/// Words of outages inside of a script. Servers before Redis 7 answer `ERR` to all that fails there.
const OUTAGES: [&str; 8] = [
    "OOM command",
    "READONLY",
    "MISCONF",
    "NOREPLICAS",
    "MASTERDOWN",
    "ACL failure",
    "executing the script",
    "unknown command",
];
const OF_A_CLUSTER: [&str; 5] = ["MOVED", "ASK", "CLUSTERDOWN", "CROSSSLOT", "TRYAGAIN"];

/// Where a tenant's bucket is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bucket<'a> {
    pub(super) server: &'a str,
    /// As whom we are connected, in words.
    pub(super) identity: &'a str,
    pub(super) key: &'a str,
}

/// What the script answered.
pub(super) fn decision(reply: &Value, bucket: Bucket<'_>) -> LimitDecision {
    let Bucket { server, key, .. } = bucket;
    match reply {
        Value::ServerError(error) => {
            let error = ErrorReply::of(error);
            let words = told(error, bucket.identity);
            if is_of_one_row(error) {
                let text =
                    format!("{server}: the key {key} holds something else than a limit; DEL it: {words}");
                return LimitDecision::Odd(text);
            }
            LimitDecision::Lost(format!("{server}: {words}"))
        }
        Value::Array(numbers) => said(numbers).unwrap_or_else(|| strange(server)),
        _ => strange(server),
    }
}

fn strange(server: &str) -> LimitDecision {
    LimitDecision::Lost(format!("{server} answered with something that is no decision"))
}

fn said(numbers: &[Value]) -> Option<LimitDecision> {
    let number = |at: usize| match numbers.get(at)? {
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    };
    let left = |at: usize| Some(u32::try_from(number(at)?).unwrap_or(u32::MAX));
    let time = |at: usize| Some(Duration::from_micros(number(at)?));
    match number(0)? {
        0 => Some(LimitDecision::Wait { wait: time(1)?, one: time(2)?, left: left(3)? }),
        1 => Some(LimitDecision::Passed { left: left(1)?, full_in: time(2)? }),
        _ => None,
    }
}

fn is_of_one_row(error: ErrorReply<'_>) -> bool {
    let is_of_all = OUTAGES.iter().any(|words| error.words.contains(words));
    match error.code {
        "WRONGTYPE" => true,
        "ERR" => error.words.contains("user_script") && !is_of_all,
        _ => false,
    }
}

/// The error, and what it means for the gateway.
fn told(error: ErrorReply<'_>, identity: &str) -> String {
    let ErrorReply { code, words } = error;
    let words = words.split(", with args beginning").next().unwrap_or_default();
    let words = words.split(" script: ").next().unwrap_or_default();
    if OF_A_CLUSTER.contains(&code) {
        return format!(
            "it is a node of a cluster, and the limiter needs a single server or sentinels: {code}"
        );
    }
    // Of the script's own commands: Redis 6, and 7.
    let is_right = error.words.contains("executing the script") || error.words.contains("ACL failure");
    match code {
        "ERR" if is_right => format!("{identity} lacks a right that the script needs: {words}"),
        "NOPERM" | "NOAUTH" | "WRONGPASS" => format!("it refuses {}: {code} {words}", identity),
        _ => format!("{code} {words}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUCKET: Bucket<'_> =
        Bucket { server: "redis://h:1", identity: "user \"gate\"", key: "ph:acme:rate" };

    fn of(reply: &str) -> LimitDecision {
        let reply = format!("{reply}\r\n");
        decision(&::redis::parse_redis_value(reply.as_bytes()).expect("a reply"), BUCKET)
    }

    /// As Redis 7 and Redis 6 say it.
    #[test]
    fn an_error_that_everybody_gets_is_a_loss() {
        for (error, words) in [
            (
                "OOM command not allowed when used memory > 'maxmemory'. script: 1f, on @user_script:15.",
                "OOM",
            ),
            (
                "READONLY You can't write against a read only replica. script: 1f, on @user_script:15.",
                "READONLY",
            ),
            ("MISCONF Redis is configured to save RDB snapshots", "MISCONF"),
            ("NOREPLICAS Not enough good replicas to write.", "NOREPLICAS"),
            ("LOADING Redis is loading the dataset in memory", "LOADING"),
            ("MASTERDOWN Link with MASTER is down", "MASTERDOWN"),
            ("BUSY Redis is busy running a script.", "BUSY"),
            ("NOAUTH Authentication required.", "it refuses user \"gate\": NOAUTH"),
            ("NOPERM User gate has no permissions to run the 'evalsha' command", "it refuses user \"gate\""),
            ("MOVED 3999 127.0.0.1:6381", "a node of a cluster"),
            ("CLUSTERDOWN Hash slot not served", "a node of a cluster"),
            ("ERR unknown command 'EVALSHA', with args beginning with: 'x' 'y'", "unknown command 'EVALSHA'"),
            (
                "ERR Error running script (call to f_1f): @user_script:15: @user_script: 15: -OOM command not allowed",
                "OOM",
            ),
            (
                "ERR Error running script (call to f_1f): @user_script:15: -READONLY You can't write",
                "READONLY",
            ),
            (
                "ERR The user executing the script can't run this command or subcommand script: 1f, on @user_script:4.",
                "can't run",
            ),
            ("ERR who knows", "who knows"),
            ("NEWCODE", "NEWCODE"),
        ] {
            let LimitDecision::Lost(said) = of(&format!("-{error}")) else { panic!("{error}") };
            assert!(said.starts_with("redis://h:1: ") && said.contains(words), "{said}");
            assert!(!said.contains("user_script:15.") && !said.contains("args"), "{said}");
        }
    }

    #[test]
    fn an_error_of_one_row_is_its_tenants_alone() {
        for error in [
            "WRONGTYPE Operation against a key holding the wrong kind of value script: 1f, on @user_script:7.",
            "ERR user_script:7: bad argument #2 to 'max' (number expected, got nil) script: 1f, on @user_script:7.",
            "ERR Error running script (call to f_1f): @user_script:7: WRONGTYPE Operation against a key",
        ] {
            let LimitDecision::Odd(said) = of(&format!("-{error}")) else { panic!("{error}") };
            assert!(said.contains("ph:acme:rate") && said.contains("DEL"), "{said}");
        }
    }

    #[test]
    fn only_a_decision_is_one() {
        let (ms, us) = (Duration::from_millis(1), Duration::from_micros);
        assert_eq!(of("*3\r\n:1\r\n:7\r\n:1000"), LimitDecision::Passed { left: 7, full_in: ms });
        let wait = LimitDecision::Wait { wait: ms, one: us(3), left: 0 };
        assert_eq!(of("*4\r\n:0\r\n:1000\r\n:3\r\n:0"), wait);
        for strange in ["+OK", ":1", "*0", "*1\r\n:1", "*3\r\n:2\r\n:7\r\n:1", "*3\r\n:1\r\n:-7\r\n:1", "$-1"]
        {
            assert!(matches!(of(strange), LimitDecision::Lost(_)), "{strange}");
        }
    }
}
