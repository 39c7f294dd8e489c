use super::*;

const SECRET: &str = "k/ey+1=\"ü\"&<x>";

fn of(body: &[u8], payload: &[u8]) -> String {
    snippet(body, &[SECRET.to_owned()], payload)
}

#[test]
fn a_snippet_is_short_clean_and_without_secrets() {
    let hidden = ["hunter2".to_owned()];
    let of = |body: &[u8]| snippet(body, &hidden, b"{}");
    assert_eq!(of(b"no\r\n\x1b[31m\0 way\xff"), "no [31m way");
    assert_eq!(of(b"you sent hunter2!"), "you sent ***!");
    assert_eq!(of("ü".repeat(5_000).as_bytes()).chars().count(), CHARS);
    assert_eq!(of(b""), "");
    // Nothing is hidden, so nothing is undone.
    assert_eq!(of(br"a\/b %41 &amp; 100%"), r"a\/b %41 &amp; 100%");
}

fn json(text: &str) -> String {
    let quoted = serde_json::to_string(text).expect("text");
    quoted[1..quoted.len() - 1].replace('/', "\\/").replace('ü', "\\u00fc")
}

fn percent(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02x}")).collect()
}

fn html(text: &str) -> String {
    let mut out = String::new();
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '"' => out.push_str("&quot;"),
            '/' => out.push_str("&#x2F;"),
            'ü' => out.push_str("&#252;"),
            other => out.push(other),
        }
    }
    out
}

#[test]
fn secrets_are_found_however_they_are_quoted() {
    let forms = [
        SECRET.to_owned(),
        json(SECRET),
        percent(SECRET),
        percent(SECRET).to_uppercase(),
        html(SECRET),
        json(&json(SECRET)),
        json(&percent(SECRET)),
        percent(&percent(SECRET)),
        html(&json(SECRET)),
        json(&json(&html(SECRET))),
    ];
    for form in forms {
        let shown = of(format!("bad: {form} here").as_bytes(), b"{}");
        assert_eq!(shown, "bad: *** here", "{form}");
    }
    // Beyond the Basic Multilingual Plane, as JSON writes it.
    let shown = snippet(br"no \ud83e\udd80", &["🦀".to_owned()], b"{}");
    assert_eq!(shown, "no ***");
}

#[test]
fn what_is_quoted_of_the_payload_is_masked() {
    let payload = br#"{"email": "alice.liddell@example.com", "note": "tea \/ at \u0035", "n": 1}"#;
    assert_eq!(of(b"alice.liddell@example.com is taken", payload), "*** is taken");
    let quoted =
        format!(r#"{{"error":"cannot take {}"}}"#, json(std::str::from_utf8(payload).expect("text")));
    assert_eq!(of(quoted.as_bytes(), payload), r#"{"error":"cannot take ***"}"#);
    assert_eq!(of(b"you wrote:&quot;note&quot;: &quot;tea / at 5&quot;", payload), "you wrote:***");
    assert_eq!(of(b"email is taken; tea at five", payload), "email is taken; tea at five", "words, not runs");
    // The whole of a short one, and nothing of one that is hardly any.
    assert_eq!(of(br#"got {"pin": 1234}"#, br#"{"pin": 1234}"#), "got ***");
    assert_eq!(of(b"got {} and true", b"{}"), "got {} and true");
    // Wherever it is in a large one.
    let mut large = vec![b'.'; 3 << 20];
    large[2_000_000..2_000_020].copy_from_slice(b"a very private thing");
    assert_eq!(of(b"no: a very private thing!", &large), "no: ***!");
}

#[test]
fn a_secret_at_the_edge_of_what_is_shown_is_not_shown_in_part() {
    let body = format!("{}{SECRET}", "x".repeat(CHARS - 3));
    let shown = of(body.as_bytes(), b"");
    assert!(shown.ends_with("x***") && !shown.contains("k/e"), "{shown}");
}

/// Whatever a receiver sends: no panic, no secret, nothing of the payload, and not much.
#[test]
fn hostile_words_show_nothing_of_ours() {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut dice = |sides: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as usize % sides
    };
    const ODD: &[u8] = b"\\\\%%&&;;#xuX0025fFaZ/\"\xff\xc3 \n";
    let mut noise = |most: usize| -> Vec<u8> { (0..dice(most)).map(|_| ODD[dice(ODD.len())]).collect() };
    for _ in 0..2_000 {
        let (before, secret_part, after) = (noise(40), noise(30), noise(40));
        let payload = [&secret_part[..], b"0123456789 the payload"].concat();
        let body = [&before[..], &payload, SECRET.as_bytes(), &after].concat();
        let shown = of(&body, &payload);
        assert!(!shown.contains(SECRET) && !shown.contains("the payload"), "{shown}");
        assert!(shown.chars().count() <= CHARS, "{shown}");
    }
}

/// A long echo is cut somewhere, and that may be in the middle of a secret.
#[test]
fn a_secret_that_is_cut_in_two_is_masked() {
    let payload = vec![b'p'; BYTES - 12];
    let body = [&payload[..], b"Bearer sesame-and-more"].concat();
    let words = snippet(&body, &["sesame-and-more".to_owned()], &payload);
    assert!(words.contains("Bearer") && !words.contains("sesa"), "{words}");
}
