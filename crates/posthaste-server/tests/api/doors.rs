//! Who is let in: every route of the table with every role, and without one.

use crate::binary::run;
use crate::rig::{Rig, directory, token, write};
use rustix::process::Signal;
use serde_json::Value;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Every route, with what the document says about it: method, path with its parts filled in, role.
fn table(rig: &Rig) -> Vec<(String, String, String)> {
    let document = rig.get("/openapi.json", &rig.read).ok();
    let mut table = Vec::new();
    for (path, methods) in document["paths"].as_object().expect("paths") {
        let path = path.strip_prefix("/api/v1").expect("below the root");
        let path = path.replace("{o}", "a").replace("{event}", "1").replace("{job}", "999");
        let path = path
            .replace("{s}", "out")
            .replace("{r}", "all")
            .replace("{c}", "nobody")
            .replace("{letter}", "x");
        for (method, operation) in methods.as_object().expect("methods") {
            let role = operation["x-role"].as_str().expect("a role").to_owned();
            table.push((method.to_uppercase(), path.clone(), role));
        }
    }
    assert!(table.len() > 30, "{table:?}");
    table
}

/// The role that a request with `{}` and nothing else needs. Payloads have a right of their own, and only an
/// administrator's token has it by itself.
fn needed<'a>(path: &str, role: &'a str) -> &'a str {
    if path.ends_with("/payload") { "admin" } else { role }
}

fn rank(role: &str) -> u8 {
    match role {
        "none" | "any" => 0,
        "read" => 1,
        "operate" => 2,
        _ => 3,
    }
}

#[test]
fn every_route_with_every_role_and_without_one() {
    let rig = Rig::start("");
    for (method, path, role) in table(&rig) {
        // With a token a stream goes on for a minute: `stream` reads it.
        let is_stream = path == "/stream";
        for any in ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"] {
            let answer = rig.ask(any, &path, "", "{}");
            assert_eq!(answer.status, 401, "{any} {path} without a token: {}", answer.text);
        }
        if is_stream {
            continue;
        }
        for (have, token) in [("read", &rig.read), ("operate", &rig.operate), ("admin", &rig.admin)] {
            let answer = rig.ask(&method, &path, token, "{}");
            let refused = rank(have) < rank(needed(&path, &role));
            assert_eq!(
                answer.status == 403,
                refused,
                "{method} {path} with {have}: {} {}",
                answer.status,
                answer.text
            );
            assert!(answer.status < 500 && answer.status != 401, "{method} {path}: {}", answer.text);
            if refused {
                assert_eq!(answer.code(), "api.forbidden");
            }
        }
        let other = rig.ask(&method, &path, &rig.other, "{}");
        if path.starts_with("/outboxes/a") || path.starts_with("/consumers/") || role.ends_with("everything")
        {
            assert_eq!(other.status, 403, "{method} {path} with another outbox's token: {}", other.text);
        }
        assert!(
            !other.text.contains("order-1") && !other.text.contains("\"a\""),
            "{method} {path}: {}",
            other.text
        );
    }
    let nothing = rig.ask("GET", "/nothing", "", "");
    assert_eq!((nothing.status, rig.get("/nothing", &rig.read).status), (401, 404));
    rig.daemon.says("denied: ");
}

/// The same token with another last character.
fn changed(token: &str) -> String {
    let last = if token.ends_with('A') { 'B' } else { 'A' };
    format!("{}{last}", &token[..token.len() - 1])
}

#[test]
fn a_token_that_is_over_changed_or_revoked_enters_no_route() {
    let rig = Rig::start("");
    let table = table(&rig);
    assert_eq!(rig.get("/me", &rig.operate).ok()["name"], "ann", "it is none yet");
    let file = rig.dir.join("tokens.toml");
    let all = std::fs::read_to_string(&file).expect("it is there");
    let left: Vec<&str> = all.split("[[token]]").filter(|entry| !entry.contains("\"ann\"")).collect();
    write(&file, &left.join("[[token]]"));
    rig.daemon.signal(Signal::HUP);
    rig.eventually_refused(&rig.operate);
    let wrong = [rig.over.clone(), changed(&rig.admin), rig.operate.clone()];
    let asked: Vec<_> = table.iter().flat_map(|one| wrong.iter().map(move |token| (one, token))).collect();
    // Each is answered after a second, sixteen at a time.
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                while let Some(((method, path, _), token)) = asked.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let answer = rig.ask(method, path, token, "{}");
                    assert_eq!(
                        (answer.status, answer.code().as_str()),
                        (401, "api.unauthorized"),
                        "{method} {path}"
                    );
                    assert!(!answer.text.contains("order-1"), "{method} {path}: {}", answer.text);
                }
            });
        }
    });
}

#[test]
fn a_wrong_token_enters_nowhere_and_locks_nobody_out() {
    let rig = Rig::start("");
    let (stranger, _) = token(&["--name", "x", "--role", "admin"]);
    let changed = changed(&rig.admin);
    std::thread::scope(|scope| {
        for wrong in [stranger.as_str(), &changed, "x", "pht_", "phs_a_b", &rig.admin[..20]] {
            let rig = &rig;
            scope.spawn(move || assert!(matches!(rig.get("/me", wrong).status, 401 | 429), "{wrong}"));
        }
        for _ in 0..60 {
            scope.spawn(|| assert!(matches!(rig.get("/me", &stranger).status, 401 | 429)));
        }
        // A right one enters meanwhile.
        assert_eq!(rig.get("/me", &rig.read).ok()["name"], "rita");
    });
}

#[test]
fn a_stranger_s_host_a_form_and_a_large_body_are_refused() {
    let rig = Rig::start("");
    let bearer = format!("authorization: Bearer {}\r\n", rig.admin);
    let json = "content-type: application/json\r\n";
    for host in
        ["host: evil.example\r\n", "", "host: evil.example:7679\r\n", "host: localhost\r\nhost: evil\r\n"]
    {
        let answer = rig.send(&format!("GET /api/v1/me HTTP/1.1\r\n{host}{bearer}"), "");
        assert!(matches!(answer.status, 421 | 400), "{host:?}: {}", answer.status);
    }
    assert_eq!(
        rig.send(&format!("GET /api/v1/me HTTP/1.1\r\nhost: localhost:1\r\n{bearer}"), "").status,
        200
    );
    let path = "PUT /api/v1/outboxes/a/sinks/out/control HTTP/1.1\r\nhost: localhost\r\n";
    let pause = "{\"paused\": true, \"reason\": \"x\"}";
    for kind in ["content-type: application/x-www-form-urlencoded\r\n", "content-type: text/plain\r\n", ""] {
        assert_eq!(rig.send(&format!("{path}{bearer}{kind}"), pause).status, 415, "{kind:?}");
    }
    let large = rig.send(&format!("{path}{bearer}{json}"), &" ".repeat(2 << 20));
    assert_eq!((large.status, large.code().as_str()), (413, "api.too_large"));
    let deep = rig.send(&format!("{path}{bearer}{json}"), &"[".repeat(100_000));
    assert_eq!((deep.status, deep.code().as_str()), (400, "api.bad_body"));
    let answer = rig.send(
        &format!("GET /api/v1/me HTTP/1.1\r\nhost: localhost\r\norigin: https://evil.example\r\n{bearer}"),
        "",
    );
    assert_eq!((answer.status, answer.code().as_str()), (403, "api.other_origin"));
    assert!(!answer.head.contains("access-control"), "{}", answer.head);
    for header in ["x-frame-options: deny", "nosniff", "no-store", "default-src 'none'", "no-referrer"] {
        assert!(answer.head.contains(header), "{header}: {}", answer.head);
    }
    let outbox = rig.get("/outboxes/a", &rig.read).ok();
    assert_eq!(outbox["sinks"][0]["paused"], false, "nothing was done");
}

#[test]
fn a_page_of_another_host_is_refused_before_its_token_is_looked_at() {
    let rig = Rig::start("hosts = [\"Ops.Example\"]");
    let path = "PUT /api/v1/outboxes/a/sinks/out/control HTTP/1.1\r\ncontent-type: application/json\r\n";
    let pause = |origin: &str, token: &str, body: &str| {
        let head = format!("{path}host: {}\r\nauthorization: Bearer {token}\r\n{origin}", rig.address);
        rig.send(&head, body)
    };
    let body = "{\"paused\": true, \"reason\": \"x\"}";
    for origin in [
        "origin: https://evil.example\r\n",
        "origin: http://evil.example:7679\r\n",
        "origin: https://ops.example.evil.example\r\n",
        "origin: https://evil.example/?https://localhost\r\n",
        "origin: https://localhost@evil.example\r\n",
        "origin: https://localhost:1@evil.example\r\n",
        "origin: null\r\n",
        "origin: localhost\r\n",
        "origin: \r\n",
        "origin: http://localhost\r\norigin: https://evil.example\r\n",
    ] {
        for token in [rig.admin.as_str(), "pht_x", ""] {
            let answer = pause(origin, token, body);
            assert_eq!((answer.status, answer.code().as_str()), (403, "api.other_origin"), "{origin:?}");
        }
    }
    let audit = rig.get("/audit?outbox=a", &rig.admin).ok();
    assert!(!audit.to_string().contains("\"pause\""), "nothing was done: {audit}");
    assert_eq!(rig.get("/outboxes/a", &rig.read).ok()["sinks"][0]["paused"], false, "nothing was done");
    // A page of this listener, also behind a proxy that has another name and port, and who is no page.
    let own = format!("origin: http://{}\r\n", rig.address);
    for origin in [own.as_str(), "origin: http://LOCALHOST:1\r\n", "origin: https://ops.example\r\n", ""] {
        pause(origin, &rig.admin, body).ok();
        assert_eq!(pause(origin, "", body).status, 401, "{origin:?}");
    }
    rig.eventually("/outboxes/a", |one| one["sinks"][0]["paused"] == true);
}

#[test]
fn a_session_needs_no_cookie_and_dies_with_its_token() {
    let rig = Rig::start("");
    let opened = rig.ask("POST", "/session", &rig.operate, "{}");
    assert!(!opened.head.contains("set-cookie"));
    let session = opened.ok()["session"].as_str().expect("a session").to_owned();
    assert_eq!(rig.get("/me", &session).ok()["name"], "ann");
    let second =
        rig.ask("POST", "/session", &rig.operate, "{}").ok()["session"].as_str().expect("one").to_owned();
    assert_eq!(rig.ask("DELETE", "/session", &second, "").status, 200);
    assert_eq!(rig.get("/me", &second).status, 401);
    // A file that is broken changes nothing, and is told.
    let file = rig.dir.join("tokens.toml");
    let before = std::fs::read_to_string(&file).expect("it is there");
    write(&file, "[[token]]\nrole = 5");
    rig.daemon.signal(Signal::HUP);
    rig.daemon.says("the tokens of before stay in force");
    assert_eq!(rig.get("/me", &session).status, 200);
    rig.daemon.page("/readyz", |_, body| body.contains("the old tokens are in force"));
    rig.daemon.page("/metrics", |_, body| body.contains("posthaste_api_tokens_broken 1"));
    // Revoked, it is none, and its session is none.
    let entries: Vec<&str> = before.split("[[token]]").filter(|entry| !entry.contains("\"ann\"")).collect();
    write(&file, &entries.join("[[token]]"));
    rig.daemon.signal(Signal::HUP);
    rig.daemon.page("/metrics", |_, body| body.contains("posthaste_api_tokens_broken 0"));
    assert_eq!(rig.get("/me", &session).status, 401);
    assert_eq!(rig.get("/me", &rig.operate).status, 401);
    assert_eq!(rig.get("/me", &rig.read).status, 200);
}

#[test]
fn what_others_could_reach_needs_a_certificate_and_a_token() {
    let dir = directory();
    let base = "[outbox]\nurl = \"sqlite:x.db\"\n[sinks.out]\ntype = \"null\"\n[[route]]\ntopic = \"*\"\nsink = \"out\"\n";
    let file = dir.join("c.toml");
    for admin in [
        "listen = \"0.0.0.0:0\"",
        "listen = \"[::]:0\"\ntokens_file = \"t\"",
        "listen = \"0.0.0.0:0\"\ncert_file = \"c\"\nkey_file = \"k\"",
    ] {
        write(&file, &format!("[admin]\n{admin}\n{base}"));
        let ended = run(&["run", "--config", file.to_str().expect("UTF-8")]);
        assert_eq!(ended.code, 2, "{}", ended.err);
        assert!(
            ended.err.contains("can be reached by others") && ended.err.contains("tokens_file"),
            "{}",
            ended.err
        );
    }
    // A group that may write the file of tokens may make an administrator.
    let tokens = dir.join("tokens.toml");
    write(&tokens, &token(&["--name", "x", "--role", "read"]).1);
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o660);
    std::fs::set_permissions(&tokens, mode).expect("ours");
    write(&file, &format!("[admin]\nlisten = \"127.0.0.1:0\"\ntokens_file = {tokens:?}\n{base}"));
    let ended = run(&["run", "--listen", "off", "--config", file.to_str().expect("UTF-8")]);
    assert!(ended.code != 0 && ended.err.contains("chmod go-w"), "{}", ended.err);
    std::fs::remove_dir_all(&dir).expect("it was there");
}

#[test]
fn a_new_token_is_printed_once_and_only_its_hash_is_in_the_file() {
    let (text, entry) = token(&["--name", "ann", "--role", "operate", "--days", "3"]);
    assert!(text.starts_with("pht_") && text.len() == 4 + 12 + 1 + 43, "{text}");
    assert!(!entry.contains(text.rsplit('_').next().expect("a secret")), "{entry}");
    let read: Value = toml::from_str(&entry).expect("TOML");
    assert_eq!(
        (&read["token"][0]["payloads"], &read["token"][0]["outboxes"][0]),
        (&"masked".into(), &"*".into())
    );
    assert!(read["token"][0]["expires"].is_string());
}
