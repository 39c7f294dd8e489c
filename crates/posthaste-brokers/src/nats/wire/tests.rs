//! A connection whose other end is ours: what leaves, in which pieces, and what a server can do to it.

use super::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

/// A carrier over a pipe that holds `bytes`, and the server's end of it.
fn over(bytes: usize) -> (Arc<Session>, Carrier, DuplexStream) {
    let (near, far) = duplex(bytes);
    let session = Session::new("I.".to_owned(), "a user".to_owned(), Info::default());
    let carrier =
        Carrier::new(Arc::clone(&session), Box::new(near), Reader::default(), "nats://h:1".to_owned());
    (session, carrier, far)
}

/// How it ends when the server says this.
async fn said(words: &str) -> End {
    let (_session, mut carrier, mut far) = over(1 << 20);
    far.write_all(words.as_bytes()).await.expect("taken");
    // A server that hangs up.
    drop(far);
    carrier.run().await
}

fn failure(end: End) -> (String, String) {
    match end {
        End::Lost(failure) | End::Leaving(failure) => (failure.code.to_string(), failure.message),
    }
}

/// The pipe takes a few bytes at a time; calls append while it is full. Every frame arrives whole.
#[tokio::test]
async fn frames_of_two_calls_never_mix() {
    let (session, mut carrier, mut far) = over(7);
    let expected: String = (0..200).map(|n| format!("<frame {n}>")).collect();
    let append = async {
        for n in 0..200 {
            session.outbox.append(|bytes| bytes.extend_from_slice(format!("<frame {n}>").as_bytes()));
            tokio::task::yield_now().await; // pace
        }
        std::future::pending::<()>().await
    };
    let mut seen = Vec::new();
    let read = async {
        // The sign of life that a new connection begins with is a frame too.
        while seen.len() < expected.len() + 6 {
            seen.push(far.read_u8().await.expect("more"));
        }
    };
    tokio::select! {
        end = carrier.run() => panic!("{end:?}"),
        () = append => {}
        () = read => {}
    }
    let text = String::from_utf8(seen).expect("text");
    assert_eq!(text.replacen("PING\r\n", "", 1), expected);
}

#[tokio::test]
async fn pings_are_answered_and_many_of_them_once() {
    let (_session, mut carrier, mut far) = over(1 << 20);
    far.write_all(&b"PING\r\n".repeat(1_000)).await.expect("taken");
    let mut seen = vec![0; 12];
    tokio::select! {
        end = carrier.run() => panic!("{end:?}"),
        read = far.read_exact(&mut seen) => drop(read.expect("answered")),
    }
    assert_eq!(seen, b"PONG\r\nPING\r\n");
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_is_given_up_after_four_to_six_seconds() {
    let (session, mut carrier, mut far) = over(1 << 20);
    let started = tokio::time::Instant::now();
    // Heard once, at the beginning.
    far.write_all(b"+OK\r\n").await.expect("taken");
    let (code, words) = failure(carrier.run().await);
    assert!(code == "nats.unreachable" && words.contains("silent for 4 s"), "{words}");
    let silent = started.elapsed().as_secs();
    assert!((4..=6).contains(&silent), "{silent}");
    drop((session, far));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_answers_is_kept() {
    let (_session, mut carrier, mut far) = over(1 << 20);
    let answer = async {
        let mut ping = [0; 6];
        for _ in 0..100 {
            far.read_exact(&mut ping).await.expect("asked");
            far.write_all(b"PONG\r\n").await.expect("taken");
        }
    };
    tokio::select! {
        end = carrier.run() => panic!("{end:?}"),
        () = answer => {}
    }
}

#[tokio::test]
async fn its_last_words_are_the_reason() {
    let (code, words) = failure(said("-ERR 'Stale Connection'\r\n").await);
    assert!(code == "nats.unreachable" && words.ends_with("its last words: Stale Connection"), "{words}");
    for refusal in ["Authorization Violation", "User Authentication Expired", "authentication timeout"] {
        let (code, words) = failure(said(&format!("-ERR '{refusal}'\r\nPING\r\n")).await);
        assert!(code == "nats.auth" && words.ends_with(&format!("refuses a user: {refusal}")), "{words}");
    }
    // Somebody's topic, and not about us.
    let denied = "-ERR 'Permissions Violation for Publish to \"user.authentication.expired\"'\r\n";
    for harmless in [denied, "-ERR 'Invalid Subject'\r\nPING\r\n"] {
        let (code, words) = failure(said(harmless).await);
        assert!(code == "nats.unreachable" && words.ends_with("the server closed the connection"), "{words}");
    }
    let (code, _) = failure(said("-ERR 'Permissions Violation for Subscription to \"I.*\"'\r\n").await);
    assert_eq!(code, "nats.denied");
    let (code, words) = failure(said("HTTP/1.1 400 Bad Request\r\n\r\n").await);
    assert!(code == "nats.unreachable" && words.contains("something that is not NATS"), "{words}");
}

#[tokio::test]
async fn a_server_that_is_about_to_stop_is_left_when_all_is_answered() {
    let (session, mut carrier, mut far) = over(1 << 20);
    let call = session.register();
    far.write_all(b"INFO {\"ldm\":true,\"max_payload\":77}\r\nINFO {\"ldm\":true}\r\n").await.expect("taken");
    let End::Leaving(failure) = carrier.run().await else { panic!("lost") };
    assert!(failure.message.contains("lame duck"), "{failure:?}");
    let answer = async {
        far.write_all(b"MSG I.1-0 1 22\r\n{\"stream\":\"S\",\"seq\":7}\r\n").await.expect("taken");
        let mut notes = Vec::new();
        poll_fn(|context| call.poll_notes(context, &mut notes)).await;
        drop(call);
        notes.len()
    };
    let ((), notes) = tokio::join!(carrier.run_until_idle(), answer);
    assert_eq!(notes, 1);
}

/// What came in the same breath is not left lying until the server says more.
#[tokio::test]
async fn answers_behind_the_word_that_the_server_is_about_to_stop_are_heard() {
    let (session, mut carrier, mut far) = over(1 << 20);
    let call = session.register();
    let answer = |index| format!("MSG I.1-{index} 1 22\r\n{{\"stream\":\"S\",\"seq\":7}}\r\n");
    let burst = format!("INFO {{\"ldm\":true}}\r\n{}{}", answer(0), answer(1));
    far.write_all(burst.as_bytes()).await.expect("taken");
    assert!(matches!(carrier.run().await, End::Leaving(_)));
    let mut notes = Vec::new();
    call.take_notes(&mut notes);
    assert_eq!(notes.len(), 2);
}

#[tokio::test]
async fn what_the_server_takes_may_change() {
    let (session, mut carrier, mut far) = over(1 << 20);
    for (said, taken) in [("4096", Some(4_096)), ("0", None), ("-1", None), ("8000000", Some(8_000_000))] {
        far.write_all(format!("INFO {{\"max_payload\":{said}}}\r\n").as_bytes()).await.expect("taken");
        let learnt = async {
            while session.info().bytes_max() != taken {
                tokio::task::yield_now().await; // pace
            }
        };
        tokio::select! {
            end = carrier.run() => panic!("{end:?}"),
            () = learnt => {}
        }
    }
}

#[tokio::test]
async fn a_ping_is_answered_by_its_own_answer_and_not_by_an_earlier_one() {
    let (session, mut carrier, mut far) = over(1 << 20);
    let patience = Duration::from_secs(60);
    let too_few = async {
        let mut ping = [0; 6];
        far.read_exact(&mut ping).await.expect("the sign of life that a connection begins with");
        far.write_all(b"PONG\r\n").await.expect("taken");
        let asked = session.answers_ping(Duration::from_millis(50)).await;
        far.write_all(b"PONG\r\nPONG\r\n").await.expect("taken");
        (asked, session.answers_ping(patience).await)
    };
    tokio::select! {
        end = carrier.run() => panic!("{end:?}"),
        found = too_few => assert_eq!(found, (false, true)),
    }
}
