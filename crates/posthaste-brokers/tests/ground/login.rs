//! Who may come in: refusals that name the option, the file or the user, and secrets that no words show.

use super::*;

/// What no verdict, finding or printed option may hold.
pub(crate) const SECRET: &str = "hunter2-s3cr3t";

/// Where no file is.
pub(crate) fn missing() -> Option<PathBuf> {
    Some(PathBuf::from("/nonexistent/secret"))
}

/// Refused by name: the words say as whom but not with what, and so do the findings.
pub(crate) async fn assert_not_let_in(sink: &Arc<dyn Sink>, destination: &str, code: &str, words: &[&str]) {
    // A broker may think for a second before it refuses.
    let findings = sink.examine(&[]).await;
    let verdict = publish_one(sink, loose(destination)).await;
    assert_seen(&verdict, "retry", code, Scope::Sink);
    let found = seen(&verdict).3;
    assert!(words.iter().all(|word| found.contains(word)) && !found.contains(SECRET), "{found}");
    let level =
        |check: &str| findings.iter().find(|finding| finding.check == check).map(|finding| finding.level);
    assert_eq!(
        (level("reachable"), level("authenticated")),
        (Some(Level::Ok), Some(Level::Fail)),
        "{findings:?}"
    );
    assert!(!format!("{findings:?}").contains(SECRET), "{findings:?}");
}

/// The other side is not whom we trust, or does not trust us.
pub(crate) async fn assert_no_trust(sink: &Arc<dyn Sink>, destination: &str, code: &str, because: &[&str]) {
    let verdict = publish_one(sink, loose(destination)).await;
    assert_eq!((seen(&verdict).0, seen(&verdict).1), ("retry", code), "{verdict:?}");
    let words = seen(&verdict).3;
    assert!(because.iter().any(|because| words.contains(because)), "{words}");
}

/// Each of these is refused at the start, and the words name what is wrong.
pub(crate) async fn assert_all_refused(table: impl IntoIterator<Item = (SinkConfig, &str)>) {
    for (config, expected) in table {
        let error = config.build("test").await.err().expect("refused").to_string();
        assert!(error.contains(expected) && !error.contains(SECRET), "{error} instead of {expected}");
    }
}

/// Printed in every way there is, these options show `expected` and no secret.
#[track_caller]
pub(crate) fn assert_printed_without_secret(options: &str, expected: &str) {
    let config: SinkConfig = toml::from_str(options).expect("valid");
    let shown = format!("{config:?} {config:#?} {}", serde_json::to_string(&config).expect("serializes"));
    assert!(!shown.contains(SECRET), "{shown}");
    assert!(shown.contains(expected) && shown.contains("***"), "{shown}");
}

/// The least that can be written gives the defaults, and a misspelt option is refused by its name.
#[track_caller]
pub(crate) fn assert_defaults(kind: &str, url: &str, defaults: SinkConfig, misspelt: &str) {
    let least = format!("type = {kind:?}\nurl = {url:?}");
    assert_eq!(toml::from_str::<SinkConfig>(&least).expect("valid"), defaults);
    let wrong = toml::from_str::<SinkConfig>(&format!("{least}\n{misspelt} = 1")).expect_err("misspelt");
    assert!(wrong.to_string().contains(misspelt), "{wrong}");
}
