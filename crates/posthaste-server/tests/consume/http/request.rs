//! The request that a handler gets is the sink's.

use crate::member::WAIT;
use crate::rig::Rig;
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Receiver, ReceiverOptions, Recorded, ServiceError};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const NOBODYS: &str = "whsec_bm9ib2R5LW5vYm9keS1ub2JvZHktbm9ib2R5";

/// Judged by the Python of docs/brokers/http.md.
fn is_genuine(rig: &Rig, secret: &str, request: &Recorded) -> Result<bool, ServiceError> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/brokers/http.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let code = page.split("```python\n").nth(1).and_then(|rest| rest.split("```").next()).expect("its code");
    let (headers, body) = (headers(request), String::from_utf8_lossy(&request.body));
    let call = format!("print(genuine({secret:?}, {headers:?}, {body:?}.encode()))");
    let file = rig.write("genuine.py", &format!("{code}\n{call}\n"));
    let missing =
        |why: std::io::Error| ServiceError::Missing { service: "python3".to_owned(), why: why.to_string() };
    let output = Command::new("python3").arg(file).output().map_err(missing)?;
    let (said, trouble) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(["True", "False"].contains(&said.trim()), "{said}{trouble}");
    Ok(said.trim() == "True")
}

fn headers(request: &Recorded) -> BTreeMap<&str, &str> {
    request.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

/// One event, over a sink and over a broker to a handler: the same headers and body, each signed for itself.
#[tokio::test(flavor = "multi_thread")]
async fn f47_a_request_to_a_handler_is_signed_like_that_of_a_sink() {
    let receiver = Receiver::start(&ReceiverOptions::default()).await.expect("a receiver");
    let rig = require_service!(Rig::set("").await);
    let url = receiver.url();
    let sink = format!(
        "[sinks.hook]\ntype = \"http\"\nurl = \"{url}\"\nsecrets = [\"{SECRET}\"]\nallow_private = true\n[sinks.broker]"
    );
    rig.reconfigure("[sinks.broker]", &sink);
    rig.reconfigure("sinks = [\"broker\"]", "sinks = [\"broker\", \"hook\"]");
    let handler = format!("http = {{ url = \"{url}/handler\", secrets = [\"{SECRET}\"] }}");
    rig.reconfigure("sql = \"trial.handle\"", &handler);
    let event = ["--key", "k\u{e4}7", "--type", "order", "--payload", r#"{"id": 7}"#];
    rig.cli(&[&["append", "orders"], &event[..]].concat()).ok();
    let member = rig.start();
    let [by_sink, by_handler] = eventually("both have come", WAIT, || async {
        let found = ["/orders", "/handler"].map(|path| receiver.requests_for(path).into_iter().next());
        let [Some(sink), Some(handler)] = found else { return None };
        Some([sink, handler])
    })
    .await;
    for request in [&by_sink, &by_handler] {
        assert!(require_service!(is_genuine(&rig, SECRET, request)), "{request:?}");
        assert!(!require_service!(is_genuine(&rig, NOBODYS, request)), "{request:?}");
    }
    assert_eq!(by_sink.body, by_handler.body);
    let (mut theirs, mut ours) = (headers(&by_sink), headers(&by_handler));
    // Two attempts have two times.
    for name in ["webhook-timestamp", "webhook-signature"] {
        assert!(theirs.remove(name).is_some() && ours.remove(name).is_some(), "{name}");
    }
    ours.retain(|name, _| *name == "posthaste-encoded" || !name.starts_with("posthaste-"));
    assert_eq!(ours, theirs);
    assert_eq!(ours.get("posthaste-encoded"), Some(&"key"));
    member.stop().await;
}
