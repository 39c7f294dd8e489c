use super::*;
use posthaste::sink::Scope;
use proptest::prelude::*;

fn seen(status: u16, given: &[(&str, OnStatus)]) -> (&'static str, Scope) {
    let given = given.iter().map(|(name, meaning)| ((*name).to_owned(), *meaning)).collect();
    let statuses = Statuses::new(&given).expect("statuses");
    let status = StatusCode::from_u16(status).expect("a status");
    let wait = Some(Duration::from_secs(7));
    match statuses.verdict(status, words("https://h", status, ""), wait) {
        Verdict::Retry(failure) => {
            assert_eq!(failure.code, format!("http.{}", status.as_u16()));
            assert_eq!(failure.retry_after, wait);
            ("retry", failure.scope)
        }
        Verdict::Rejected(failure) => ("rejected", failure.scope),
        other => panic!("{other:?}"),
    }
}

#[test]
fn f46_every_row_of_the_table() {
    for status in [400, 410, 413, 414, 415, 422, 431] {
        assert_eq!(seen(status, &[]), ("rejected", Scope::Event), "{status}");
    }
    for status in [408, 429, 502, 503, 504, 507, 520, 522, 530, 401, 402, 403, 404, 405, 407, 421, 451] {
        assert_eq!(seen(status, &[]), ("retry", Scope::Destination), "{status}");
    }
    for status in [300, 301, 302, 303, 304, 307, 308] {
        assert_eq!(seen(status, &[]), ("retry", Scope::Destination), "{status}");
    }
    for status in [406, 409, 411, 412, 418, 423, 425, 428, 500, 501, 505, 508, 511, 599, 600, 999] {
        assert_eq!(seen(status, &[]), ("retry", Scope::Event), "{status}");
    }
}

#[test]
fn f46_configuration_has_the_last_word() {
    let given = [("404", OnStatus::Reject), ("5xx", OnStatus::Wait), ("503", OnStatus::Retry)];
    assert_eq!(seen(404, &given), ("rejected", Scope::Event));
    assert_eq!(seen(403, &given), ("retry", Scope::Destination));
    assert_eq!(seen(500, &given), ("retry", Scope::Destination));
    assert_eq!(seen(503, &given), ("retry", Scope::Event));
    for bad in ["200", "2xx", "xx", "600", "", "404 ", "1xx", "6xx"] {
        let given = BTreeMap::from([(bad.to_owned(), OnStatus::Retry)]);
        assert_eq!(Statuses::new(&given).expect_err(bad).option_name(), "statuses");
    }
}

#[test]
fn retry_after_in_both_forms() {
    let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
    let seconds = |value, now| retry_after(value, at(now)).map(|wait| wait.as_secs());
    assert_eq!((seconds("120", 0), seconds(" 0 ", 0)), (Some(120), Some(0)));
    assert_eq!(seconds("99999999999999999999999", 0), Some(u64::MAX));
    // RFC 9110's own example.
    assert_eq!(seconds("Sun, 06 Nov 1994 08:49:37 GMT", 784_111_777 - 30), Some(30));
    assert_eq!(seconds("Sun, 06 Nov 1994 08:49:37 GMT", 784_111_777 + 30), Some(0), "past");
    assert_eq!(seconds("Thu, 29 Feb 2024 00:00:00 GMT", 1_709_164_800), Some(0));
    assert_eq!(seconds("Fri, 01 Mar 2024 00:00:01 GMT", 1_709_251_200), Some(1));
    assert_eq!(seconds("Thu, 01 Jan 1970 00:00:05 GMT", 0), Some(5));
    for bad in
        ["", "soon", "-1", "1.5", "Sun, 06 Nov 1994", "Sun, 06 Foo 1994 08:49:37 GMT", "x, 1 2 3 4 GMT"]
    {
        assert_eq!(seconds(bad, 0), None, "{bad:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn any_text_is_a_time_to_wait_or_none(
        value in "([0-9]{1,24}|[A-Z][a-z]{2}, [0-9]{1,3} (Jan|Feb|Dec|x) [0-9]{1,21} [0-9]{1,3}:[0-9]{2}:[0-9]{2} GMT|\\PC{0,30})",
        now in 0..10_000_000_000_u64,
    ) {
        // Later is never longer.
        let wait = |now| retry_after(&value, UNIX_EPOCH + Duration::from_secs(now));
        prop_assert!(wait(now + 1) <= wait(now));
    }

    #[test]
    fn a_later_second_of_a_day_is_later(day in 1..=28_u64, second in 0..86_399_u64) {
        let date = |second: u64| {
            let (hour, minute) = (second / 3_600, second / 60 % 60);
            http_date(&format!("Sun, {day:02} Nov 1994 {hour:02}:{minute:02}:{:02} GMT", second % 60))
        };
        prop_assert_eq!(date(second + 1), date(second).map(|at| at + 1));
    }
}
