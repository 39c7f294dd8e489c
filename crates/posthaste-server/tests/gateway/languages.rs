//! The clients of examples/gateway, as they are.

use crate::rig::Rig;
use std::path::Path;
use std::process::Command;

#[test]
fn w4_clients_in_three_languages_hand_in_one_order_each() {
    let rig = Rig::start("limit = { rate_per_s = 1, burst = 1 }\n");
    let key = rig.key("acme", &[]);
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/gateway");
    // The second and the third are above the rate at first: they obey, and pass.
    for (order, (program, file)) in
        [("bash", "send.sh"), ("python3", "send.py"), ("node", "send.mjs")].iter().enumerate()
    {
        let mut command = Command::new(program);
        command.arg(examples.join(file)).arg(order.to_string());
        command.env("KEY", &key).env("GATEWAY", format!("http://{}", rig.address));
        let ended = command.output().unwrap_or_else(|error| panic!("{program}: {error}"));
        assert!(ended.status.success(), "{file}: {}", String::from_utf8_lossy(&ended.stderr));
        let answer: serde_json::Value = serde_json::from_slice(&ended.stdout).expect("JSON");
        let event = rig.event(answer["ids"][0].as_str().expect("an id"));
        assert_eq!(event["event"]["headers"]["type"], "OrderPlaced", "{event}");
        let payload = event["event"]["payload"].to_string();
        assert!(payload.contains("order") && payload.contains(&order.to_string()), "{event}");
    }
    assert_eq!(rig.events().len(), 3);
    let wrong = Command::new("python3")
        .arg(examples.join("send.py"))
        .arg("1")
        .env("KEY", "phk_no")
        .env("GATEWAY", format!("http://{}", rig.address))
        .output()
        .expect("it starts");
    assert!(!wrong.status.success() && String::from_utf8_lossy(&wrong.stderr).contains("gateway.key"));
}
