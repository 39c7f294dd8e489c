//! One number for each cause of failure.
//!
//! A broken deployment makes a hundred thousand dead letters and one cause. Their texts differ in what they
//! are about (an order's number, a host, a time) and are alike in what went wrong. So the number is made of
//! the text without its values.
//!
//! Numbers are stored, and are compared with those that other versions made: **the algorithm never
//! changes**. It goes by ASCII alone, because Unicode's tables grow, and it is written out here, because a
//! library's hash may become another one. Refused: learning patterns from the failures that were seen. The
//! same failure would have another number tomorrow.
//!
//! 1. The text becomes words. ASCII letters and digits, `_ - . : @ +` and every character beyond ASCII but
//!    `“ ” „ ‘ « »` make words; everything else separates them. `- . : @ +` at either end of a word are taken
//!    off. A word that is empty then is none.
//! 2. What is quoted is one value, whatever is in it: between two `'`, `"` or backticks, between `“` or `„`
//!    and `”`, `‘` and `’`, `«` and `»`, and between `=(` and `)`, as PostgreSQL writes the values of a key.
//!    `'` does not open directly behind a letter or digit, and `'` and `’` do not close directly before one:
//!    those are apostrophes. A backslash takes the meaning from the sign behind it. A sign that was opened
//!    once and never closed only separates words from then on.
//! 3. A word is a value when it has a digit (numbers, times, UUIDs, hosts with a port), an `@`, or at least
//!    eight characters that are all hex digits. A word that ends with `:` before `//` begins an address, a
//!    value that ends before the next space, quote, bracket or comma.
//! 4. Values in a row are one value, written `?`. Other words are written in lower case (ASCII).
//! 5. The number is the 64-bit FNV-1a of `of`, 0xFF, `class`, 0xFF, `code`, 0xFF and each word with a space
//!    behind it, read as a signed number.

/// The number of a failure's cause: of which sink or consumer, with which class, code and text.
///
/// Failures with one cause get one number, for ever and on every machine. The number is made of the whole
/// text: whoever keeps only a part of it asks before cutting.
#[must_use]
pub fn fingerprint(of: &str, class: &str, code: &str, text: &str) -> i64 {
    let mut hash = Fnv(0xcbf2_9ce4_8422_2325);
    for field in [of, class, code] {
        field.bytes().for_each(|byte| hash.eat(byte));
        hash.eat(0xff); // in no text
    }
    let mut in_values = false;
    Words { rest: text, behind_letter: false, never_closed: Vec::new() }.for_each(|word| {
        match word {
            Word::Value if in_values => return,
            Word::Value => hash.eat(b'?'),
            Word::Plain(word) => word.bytes().for_each(|byte| hash.eat(byte.to_ascii_lowercase())),
        }
        hash.eat(b' ');
        in_values = word == Word::Value;
    });
    hash.0.cast_signed()
}

struct Fnv(u64);

impl Fnv {
    fn eat(&mut self, byte: u8) {
        self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Word<'a> {
    Plain(&'a str),
    Value,
}

const JOINS: &[char] = &['-', '.', ':', '@', '+'];

/// The words of a text, one after the other.
struct Words<'a> {
    rest: &'a str,
    /// Whether a letter or digit stands directly before the rest: no quote is opened there.
    behind_letter: bool,
    /// Signs that nothing closes any more. Each is looked for once, so a text costs its length a few times.
    never_closed: Vec<char>,
}

impl<'a> Iterator for Words<'a> {
    type Item = Word<'a>;

    fn next(&mut self) -> Option<Word<'a>> {
        while let Some(sign) = self.rest.chars().next() {
            if let Some(quoted) = self.quoted(sign) {
                self.skip(quoted);
                return Some(Word::Value);
            }
            if !makes_words(sign) {
                self.skip(sign.len_utf8());
                continue;
            }
            let end = self.rest.find(|c| !makes_words(c)).unwrap_or(self.rest.len());
            let (run, behind) = self.rest.split_at(end);
            if run.ends_with(':') && behind.starts_with("//") {
                let ends = |c: char| c.is_ascii_whitespace() || "'\"`<>()[]{},".contains(c);
                self.skip(end + behind.find(ends).unwrap_or(behind.len()));
                return Some(Word::Value);
            }
            self.skip(end);
            let word = run.trim_matches(JOINS);
            if !word.is_empty() {
                return Some(if is_value(word) { Word::Value } else { Word::Plain(word) });
            }
        }
        None
    }
}

impl Words<'_> {
    fn skip(&mut self, bytes: usize) {
        let (gone, rest) = self.rest.split_at(bytes);
        self.behind_letter = gone.chars().next_back().is_some_and(is_letter);
        self.rest = rest;
    }

    /// The length of what is quoted here, its signs included.
    fn quoted(&mut self, sign: char) -> Option<usize> {
        let close = match sign {
            '\'' | '"' | '`' => sign,
            '“' | '„' => '”',
            '‘' => '’',
            '«' => '»',
            '=' if self.rest.starts_with("=(") => ')',
            _ => return None,
        };
        if self.never_closed.contains(&sign) || (self.behind_letter && sign == '\'') {
            return None;
        }
        let apostrophe = matches!(close, '\'' | '’');
        let mut signs = self.rest.char_indices().skip(1).peekable();
        while let Some((at, found)) = signs.next() {
            if found == '\\' {
                signs.next();
            } else if found == close
                && !(apostrophe && signs.peek().is_some_and(|&(_, behind)| is_letter(behind)))
            {
                return Some(at + found.len_utf8());
            }
        }
        self.never_closed.push(sign);
        None
    }
}

fn is_letter(sign: char) -> bool {
    sign.is_ascii_alphanumeric() || !(sign.is_ascii() || "“”„‘«»".contains(sign))
}

fn makes_words(sign: char) -> bool {
    is_letter(sign) || sign == '_' || JOINS.contains(&sign)
}

fn is_value(word: &str) -> bool {
    let hex = word.len() >= 8 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    hex || word.bytes().any(|byte| byte.is_ascii_digit() || byte == b'@')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn written(text: &str) -> String {
        let mut words: Vec<&str> = Words { rest: text, behind_letter: false, never_closed: Vec::new() }
            .map(|word| if let Word::Plain(word) = word { word } else { "?" })
            .collect();
        words.dedup_by(|one, other| one == other && *one == "?");
        words.join(" ").to_ascii_lowercase()
    }

    /// Stored numbers are made of these. A line that turns red is a cause that nobody finds again.
    #[test]
    fn the_numbers_are_the_same_for_ever() {
        let refused = "error connecting to server: Connection refused (os error 111)";
        for (of, class, code, text, number) in [
            ("", "", "", "", -461_561_667_403_403_756),
            ("billing", "transient", "08001", refused, -8_983_124_189_745_574_687),
            (
                "billing",
                "permanent",
                "23505",
                "duplicate key: Key (id)=(A-17) already exists.",
                -6_472_497_877_196_673_065,
            ),
            (
                "nats",
                "unknown",
                "nats.no_answer",
                "no answer from nats://10.0.0.7:4222 für 5 s",
                2_238_685_383_027_965_481,
            ),
        ] {
            assert_eq!(fingerprint(of, class, code, text), number, "{of} {class} {code} {text}");
        }
    }

    #[test]
    fn values_go_and_words_stay() {
        for (text, words) in [
            ("", ""),
            ("Connection refused (os error 111)", "connection refused os error ?"),
            ("order 17 of 2026-11-16 19:09:11.5+00:00, try 3/4", "order ? of ? try ?"),
            ("id 01a1e067-1564-75d8-a6f2-191762313cd8 is unknown", "id ? is unknown"),
            ("commit DEADBEEF added, 0x7f3 and deadbee not", "commit ? added ? and deadbee not"),
            (
                "GET /orders/17/items: HTTP/1.1 503 Service Unavailable",
                "get orders ? items http ? service unavailable",
            ),
            ("fetch https://api.example.com/a?b=c#d, then http://x/y) done", "fetch ? then ? done"),
            ("no route to db-1.internal:5432 or [::1]:5432 or db.internal:5432", "no route to ? or ? or ?"),
            ("mail to bob+news@example.com bounced", "mail to ? bounced"),
            ("relation \"orders\" and 'it''s' and `x y`: none", "relation ? and ? and ? none"),
            ("it can't be, it isn't, it can’t", "it can t be it isn t it can’t"),
            ("name:'Bob' said \"hi \\\"there\\\" you\" and left", "name ? said ? and left"),
            ("„so“ “so” «so» ‘isn’t’ gut”", "? gut"),
            ("Key (a, b)=(Bob, (x) is there.", "key a b ? is there"),
            ("never closed \" here and \" there \" end", "never closed ? there end"),
            ("retry=true attempts=3", "retry true attempts ?"),
            ("std::io::Error: kind::Other...", "std::io::error kind::other"),
            ("größe überschritten: 5 MiB", "größe überschritten ? mib"),
        ] {
            assert_eq!(written(text), words, "{text}");
        }
    }

    #[test]
    fn each_part_counts_and_none_flows_into_the_next() {
        let made = [
            fingerprint("a", "b", "c", "d"),
            fingerprint("x", "b", "c", "d"),
            fingerprint("a", "x", "c", "d"),
            fingerprint("a", "b", "x", "d"),
            fingerprint("a", "b", "c", "x"),
            fingerprint("ab", "", "c", "d"),
            fingerprint("a", "bc", "", "d"),
            fingerprint("a", "b", "cd", ""),
            fingerprint("a", "b", "c", "d d"),
        ];
        let distinct: HashMap<i64, ()> = made.iter().map(|&number| (number, ())).collect();
        assert_eq!(distinct.len(), made.len());
    }

    fn value() -> impl Strategy<Value = String> {
        prop_oneof![
            any::<i64>().prop_map(|n| n.to_string()),
            any::<u128>().prop_map(|n| uuid::Uuid::from_u128(n).to_string()),
            any::<u64>().prop_map(|n| format!("{n:#x}")),
            any::<[u8; 4]>().prop_map(|ip| format!("{}:5432", std::net::Ipv4Addr::from(ip))),
            any::<u128>().prop_map(|ip| format!("[{}]:5432", std::net::Ipv6Addr::from(ip))),
            "[a-z]{1,8}@[a-z]{1,8}\\.com",
            "https?://[a-z]{1,8}(/[a-z0-9=?&%]{0,8}){0,3}",
            r#"[^\\"]{0,20}"#.prop_map(|text| format!("\"{text}\"")),
            any::<String>().prop_map(|text| format!("{text:?}")),
        ]
    }

    proptest! {
        #[test]
        fn one_cause_has_one_number(
            words in prop::collection::vec("[g-z]{1,7}", 1..6), one in value(), other in value(), at in 0_usize..6,
        ) {
            let with = |value: &str| {
                let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
                words.insert(at.min(words.len()), value);
                words.join(" ")
            };
            let of = |text: &str| fingerprint("billing", "transient", "08006", text);
            prop_assert_eq!(of(&with(&one)), of(&with(&other)), "{} {}", with(&one), with(&other));
            prop_assert_ne!(of(&with(&one)), of(&words.join(" ")));
        }

        #[test]
        fn any_text_has_a_number(text in any::<String>()) {
            let _ = fingerprint("", "", "", &text);
        }
    }
}
