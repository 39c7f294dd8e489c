//! Schemas by file: what breaks one is refused with place and rule, and has been paid for.

use crate::rig::{Rig, directory};
use rustix::process::Signal;

const ORDER: &str =
    r#"{"type": "object", "required": ["order"], "properties": {"order": {"type": "integer"}}}"#;
const REFUND: &str = r#"{"type": "object", "required": ["refund"]}"#;

#[test]
fn a_broken_schema_is_told_with_place_and_rule_and_has_paid() {
    let dir = directory();
    let (order, refund) = (dir.join("order.json"), dir.join("refund.json"));
    std::fs::write(&order, ORDER).expect("written");
    std::fs::write(&refund, REFUND).expect("written");
    let topic = format!(
        "limit = {{ rate_per_s = 0.001, burst = 6 }}\n[[gateway.topic]]\ntopic = \"orders.placed\"\nschema_file = {order:?}\n\
         schemas = {{ Refund = {refund:?} }}\n"
    );
    let rig = Rig::start(&topic);
    let key = rig.key("acme", &[]);
    assert_eq!(rig.post("orders.placed", &key, "{\"order\": 1}").status, 202);
    let answer = rig.post("orders.placed", &key, "{\"order\": \"s3cret\"}");
    assert_eq!((answer.status, answer.code().as_str()), (422, "gateway.schema"));
    let told = answer.text.as_str();
    assert!(told.contains("/order") && told.contains("integer") && !told.contains("s3cret"), "{told}");
    assert!(
        answer.field("ratelimit").is_some_and(|left| left.contains("r=4")),
        "it has paid: {}",
        answer.head
    );
    // The schema of its type, and the place in a batch.
    let kind = [("content-type", "application/json"), ("event-type", "Refund")];
    assert_eq!(rig.post_with("orders.placed", &key, &kind, b"{\"order\": 1}").code(), "gateway.schema");
    assert_eq!(rig.post_with("orders.placed", &key, &kind, b"{\"refund\": 1}").status, 202);
    let batch = [("content-type", "application/vnd.posthaste.batch+json")];
    let body = br#"{"events": [{"payload": {"order": 2}}, {"payload": {"order": "s3cret"}}]}"#;
    let answer = rig.post_with("orders.placed", &key, &batch, body);
    assert_eq!((answer.status, answer.code().as_str()), (422, "gateway.schema"));
    assert!(answer.text.contains("events[1]") && !answer.text.contains("s3cret"), "{}", answer.text);
    // Six tokens are gone: two for what was stored, four for what was not.
    assert_eq!(rig.post("orders.placed", &key, "{\"order\": 3}").status, 429);
    assert_eq!(rig.events().len(), 2);
    assert!(!rig.daemon.said().contains("s3cret"), "{}", rig.daemon.said());
    // The file is read again on SIGHUP. One that cannot be used changes nothing.
    let other = rig.key("other", &[]);
    std::fs::write(&order, "{\"type\": 7}").expect("written");
    rig.daemon.signal(Signal::HUP);
    rig.daemon.says("schema_file");
    assert_eq!(rig.post("orders.placed", &other, "{\"order\": \"x\"}").status, 422);
    std::fs::write(&order, "{}").expect("written");
    rig.daemon.signal(Signal::HUP);
    let third = rig.key("third", &[]);
    rig.cli(&["gateway", "tenants", "set", "third", "--rate", "1000/s", "--burst", "1000"]).ok();
    rig.until("the schema is another one", || {
        rig.post("orders.placed", &third, "{\"order\": \"x\"}").status == 202
    });
    let _ = std::fs::remove_dir_all(&dir);
}
