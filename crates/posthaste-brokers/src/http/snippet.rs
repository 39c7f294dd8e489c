//! A receiver's words, fit for a log and for the dead letters.
//!
//! They are the receiver's, so they may hold anything, and what is most likely in them is what it was sent: a validator
//! quotes the field that it does not like, a debug page prints the request. So our secrets are masked, and so is every
//! run of the payload: payloads hold personal data, and errors are read by people, and copied to places, that payloads
//! are not. Both are found as they are and in the forms in which text is quoted: JSON (`\/`, `\u00e9`), percent
//! encoding, entities of HTML, and these inside each other. Words that quote something in such a form are shown
//! without the escapes.
//!
//! Masking the payload by its parsed fields was refused: payloads are bytes, whatever their content type says. The price
//! is that a quoted name of a field is masked too where it is long; its value was in as much danger.

use rustc_hash::FxHashSet;

/// Characters that are kept for the operator.
const CHARS: usize = 200;
/// Bytes of a body that are looked at. More than are shown: a secret that is cut in two would not be found.
pub(super) const BYTES: usize = 4 << 10;
/// A quotation: a name and an address are longer, most words are shorter.
const RUN: usize = 16;
/// A payload below this length is no quotation of anything: `{}`, `true`, a number.
const SHORT: usize = 8;
/// The shortest beginning of a secret that tells something of it.
const CUT: usize = 4;
/// Escapes inside of escapes that are undone.
const DEPTH: usize = 3;

const MASK: &[u8] = b"***";

/// The beginning of `body`: no control characters, none of our secrets, nothing of the payload, not much.
pub(super) fn snippet(body: &[u8], hidden: &[String], payload: &[u8]) -> String {
    let plain = undo(payload, &[]).0;
    let mut text = body[..body.len().min(BYTES)].to_vec();
    let (mut marks, mut shown) = (vec![false; text.len()], text.clone());
    for _ in 0..=DEPTH {
        let before = marks.iter().filter(|mark| **mark).count();
        mark(&mut marks, &text, hidden, [payload, &plain]);
        if marks.iter().filter(|mark| **mark).count() > before {
            shown = masked(&text, &marks);
        }
        // What was found here stays hidden in the deeper layers.
        let (next, carried) = undo(&text, &marks);
        if next == text {
            break;
        }
        (text, marks) = (next, carried);
    }
    clean(&shown)
}

/// Marks the bytes that must not be shown.
fn mark(marks: &mut [bool], text: &[u8], hidden: &[String], payloads: [&[u8]; 2]) {
    for secret in hidden.iter().filter(|secret| !secret.is_empty()) {
        mark_all(marks, text, secret.as_bytes());
        mark_cut(marks, text, secret.as_bytes());
    }
    for payload in payloads {
        if payload.len() < RUN && payload.len() >= SHORT {
            mark_all(marks, text, payload);
        }
    }
    mark_runs(marks, text, payloads);
}

fn mark_all(marks: &mut [bool], text: &[u8], found: &[u8]) {
    for (at, _) in text.windows(found.len()).enumerate().filter(|(_, window)| *window == found) {
        marks[at..at + found.len()].fill(true);
    }
}

/// Marks the beginning of a secret at the end: there the words were cut.
fn mark_cut(marks: &mut [bool], text: &[u8], secret: &[u8]) {
    if let Some(length) = (CUT..secret.len()).rev().find(|length| text.ends_with(&secret[..*length])) {
        marks[text.len() - length..].fill(true);
    }
}

/// Marks what stands in a payload too, in runs. One pass over the payload, whatever its length.
fn mark_runs(marks: &mut [bool], text: &[u8], payloads: [&[u8]; 2]) {
    let ours: FxHashSet<u128> = runs(text).collect();
    let mut quoted = FxHashSet::default();
    if !ours.is_empty() {
        quoted.extend(payloads.into_iter().flat_map(runs).filter(|run| ours.contains(run)));
    }
    for (at, _) in runs(text).enumerate().filter(|(_, run)| quoted.contains(run)) {
        marks[at..at + RUN].fill(true);
    }
}

fn runs(bytes: &[u8]) -> impl Iterator<Item = u128> {
    // A window has as many bytes as the number.
    bytes.windows(RUN).map(|run| run.try_into().map_or(0, u128::from_le_bytes))
}

fn masked(text: &[u8], marks: &[bool]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    for (at, byte) in text.iter().enumerate() {
        match marks[at] {
            false => out.push(*byte),
            true if at > 0 && marks[at - 1] => {}
            true => out.extend_from_slice(MASK),
        }
    }
    out
}

fn clean(text: &[u8]) -> String {
    let plain = |c: char| if c.is_control() || c == char::REPLACEMENT_CHARACTER { ' ' } else { c };
    let text: String = String::from_utf8_lossy(text).chars().map(plain).take(CHARS).collect();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Undoes one layer of escapes. What came of something marked is marked.
fn undo(text: &[u8], marks: &[bool]) -> (Vec<u8>, Vec<bool>) {
    let (mut out, mut carried, mut at) = (Vec::with_capacity(text.len()), Vec::new(), 0);
    while let Some(&first) = text.get(at) {
        let rest = &text[at..];
        let escape = match first {
            b'\\' => backslash(rest),
            b'%' => percent(rest),
            b'&' => entity(rest),
            _ => None,
        };
        let (character, used) = escape.unwrap_or((Decoded::Byte(first), 1));
        match character {
            Decoded::Byte(byte) => out.push(byte),
            Decoded::Char(character) => {
                out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
            }
        }
        let marked = marks.iter().skip(at).take(used).any(|mark| *mark);
        carried.resize(out.len(), marked);
        at += used;
    }
    (out, carried)
}

enum Decoded {
    Byte(u8),
    Char(char),
}

/// What an escape means, and its length.
type Escape = Option<(Decoded, usize)>;

/// `\/`, `\"`, `\n`, `\xe9`, `\u00e9`, and pairs of the last for what is beyond it.
fn backslash(text: &[u8]) -> Escape {
    let byte = |byte| Some((Decoded::Byte(byte), 2));
    match *text.get(1)? {
        b'n' => byte(b'\n'),
        b'r' => byte(b'\r'),
        b't' => byte(b'\t'),
        b'x' => Some((Decoded::Byte(u8::try_from(hex(text.get(2..4)?)?).ok()?), 4)),
        b'u' => match (hex(text.get(2..6)?)?, text.get(6..8), text.get(8..12).and_then(hex)) {
            (high @ 0xd800..=0xdbff, Some(b"\\u"), Some(low @ 0xdc00..=0xdfff)) => {
                let number = 0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00);
                Some((Decoded::Char(char::from_u32(number)?), 12))
            }
            (number, ..) => Some((Decoded::Char(char::from_u32(number)?), 6)),
        },
        other => byte(other),
    }
}

fn percent(text: &[u8]) -> Escape {
    Some((Decoded::Byte(u8::try_from(hex(text.get(1..3)?)?).ok()?), 3))
}

/// `&amp;`, `&#47;`, `&#x2F;`.
fn entity(text: &[u8]) -> Escape {
    const NAMES: [(&str, char); 8] = [
        ("amp", '&'),
        ("lt", '<'),
        ("gt", '>'),
        ("quot", '"'),
        ("apos", '\''),
        ("sol", '/'),
        ("equals", '='),
        ("plus", '+'),
    ];
    let end = text.iter().take(12).position(|byte| *byte == b';')?;
    let name = std::str::from_utf8(&text[1..end]).ok()?;
    let character = match name.strip_prefix('#') {
        Some(number) => {
            let number = match number.strip_prefix(['x', 'X']) {
                Some(digits) => hex(digits.as_bytes()),
                None => number.parse().ok(),
            };
            char::from_u32(number?)?
        }
        None => NAMES.iter().find(|(known, _)| *known == name)?.1,
    };
    Some((Decoded::Char(character), end + 1))
}

fn hex(digits: &[u8]) -> Option<u32> {
    let digits = std::str::from_utf8(digits).ok()?;
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    plain.then(|| u32::from_str_radix(digits, 16).ok()).flatten()
}

#[cfg(test)]
mod tests;
