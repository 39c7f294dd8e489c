use super::*;
use ::redis::cmd;
use tokio::io::{DuplexStream, duplex};

fn parsed(text: &str) -> Option<(Value, usize)> {
    reply(text.as_bytes(), DEPTH_MAX).expect("an answer")
}

/// What the crate's own parser makes of it.
fn theirs(text: &str) -> Value {
    parse_redis_value(text.as_bytes()).expect("an answer")
}

#[test]
fn every_kind_is_read_as_the_crate_reads_it_and_only_when_it_is_complete() {
    for text in [
        "+OK\r\n",
        "+QUEUED\r\n",
        "+PONG\r\n",
        ":42\r\n",
        "-WRONGTYPE Operation against a key\r\n",
        "-EXECABORT Transaction discarded because of: OOM no memory\r\n",
        "$15\r\n1700000000000-0\r\n",
        "$0\r\n\r\n",
        "$4\r\na\r\nb\r\n",
        "$-1\r\n",
        "*-1\r\n",
        "*0\r\n",
        "*3\r\n$3\r\n1-0\r\n-ERR no\r\n*2\r\n:1\r\n+OK\r\n",
    ] {
        assert_eq!(parsed(text), Some((theirs(text), text.len())), "{text:?}");
        for end in 0..text.len() {
            assert_eq!(parsed(&text[..end]), None, "{:?}", &text[..end]);
        }
        let more = format!("{text}+OK\r\n");
        assert_eq!(parsed(&more), Some((theirs(text), text.len())), "{more:?}");
    }
}

#[test]
fn what_is_no_answer_is_refused() {
    let nested = "*1\r\n".repeat(DEPTH_MAX + 1);
    for text in ["HTTP/1.1 400\r\n", "$x\r\n", "$-2\r\n", "*99999999999\r\n", "\r\n", &nested] {
        assert!(reply(text.as_bytes(), DEPTH_MAX).is_err(), "{text:?}");
    }
}

fn connected() -> (Connection, tokio::task::JoinHandle<()>, DuplexStream) {
    let (ours, theirs) = duplex(1 << 16);
    let (connection, carrier) = Connection::over(ours);
    (connection, tokio::spawn(carrier), theirs)
}

#[tokio::test]
async fn replies_go_to_their_requests() {
    let (connection, _carrier, mut server) = connected();
    let mut two = Pipeline::new();
    two.cmd("A").cmd("B");
    let question = cmd("C");
    let answer = async {
        let mut asked = vec![0; "*1\r\n$1\r\nA\r\n".len() * 3];
        server.read_exact(&mut asked).await.expect("three commands");
        for part in [":1\r\n:", "2\r\n:3", "\r\n"] {
            server.write_all(part.as_bytes()).await.expect("written");
        }
    };
    let (first, second, ()) = tokio::join!(connection.send_all(&two), connection.send_one(&question), answer);
    assert_eq!(first.expect("answered"), [Value::Int(1), Value::Int(2)]);
    assert_eq!(second.expect("answered"), Value::Int(3));
}

#[tokio::test]
async fn everybody_is_told_of_the_end() {
    let (connection, carrier, mut server) = connected();
    let question = cmd("PING");
    let end = async {
        server.read_exact(&mut [0; 14]).await.expect("a command");
        drop(server);
    };
    let (answer, ()) = tokio::join!(connection.send_one(&question), end);
    assert!(answer.is_err());
    assert!(connection.send_one(&question).await.is_err());
    carrier.await.expect("ended");
}

#[tokio::test]
async fn an_answer_that_nobody_asked_for_ends_the_connection() {
    let (connection, carrier, mut server) = connected();
    server.write_all(b"+OK\r\n").await.expect("written");
    carrier.await.expect("ended");
    assert!(connection.send_one(&cmd("PING")).await.is_err());
}
