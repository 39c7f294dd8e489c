//! `posthaste ui` without a file of tokens: who reads the file that it names enters, once.

use crate::binary::{posthaste, run};
use crate::daemon::Daemon;
use crate::rig::{answered_by, directory, write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

#[test]
fn a_one_time_code_is_in_a_file_of_its_own_opens_one_session_and_goes() {
    let dir = directory();
    let url = format!("sqlite:{}", dir.join("a.db").display());
    run(&["migrate", "up", "--url", &url]).ok();
    let file = dir.join("ui.toml");
    write(
        &file,
        &format!(
            "[admin]\nlisten = \"127.0.0.1:0\"\n[[outbox]]\nname = \"a\"\nurl = {url:?}\n[sinks.out]\ntype = \"null\"\n\
             [[route]]\ntopic = \"*\"\nsink = \"out\"\n"
        ),
    );
    let daemon = Daemon::spawn(posthaste(&["ui", "--config", file.to_str().expect("UTF-8")]));
    let line = daemon.says("API http://");
    let address = line.split("http://").nth(1).and_then(|rest| rest.split('/').next()).expect("an address");
    let line = daemon.says("one-time code, for five minutes: in ");
    let told = Path::new(line.rsplit(": in ").next().expect("a place").trim());
    let mode = std::fs::metadata(told).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "{mode:o}");
    let code = std::fs::read_to_string(told).expect("ours");
    assert!(code.starts_with("phc_") && !daemon.said().contains(&code), "only the file holds it");
    // It is no token, and a code that is not it opens nothing and spends nothing.
    assert_eq!(answered_by(address, "GET", "/me", &code, "").status, 401);
    let open = |code: &str| answered_by(address, "POST", "/session", "", &format!("{{\"code\": {code:?}}}"));
    assert_eq!(open(&format!("{code}x")).status, 401);
    let session = open(&code).ok()["session"].as_str().expect("a session").to_owned();
    let me = answered_by(address, "GET", "/me", &session, "").ok();
    assert_eq!((&me["name"], &me["role"]), (&"one-time code".into(), &"admin".into()), "{me}");
    let second = open(&code);
    assert_eq!((second.status, second.code().as_str()), (401, "api.unauthorized"));
    assert_eq!(answered_by(address, "GET", "/outboxes/a", &session, "").status, 200, "the first one stays");
    let told = told.to_owned();
    daemon.stop();
    assert!(!told.exists(), "it is gone");
    std::fs::remove_dir_all(&dir).expect("it was there");
}
