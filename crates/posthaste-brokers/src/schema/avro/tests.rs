// The plain functions do what is needed here; their successors are builders.
#![allow(deprecated)]

use super::*;
use apache_avro::types::Value;
use proptest::prelude::*;

const ORDER: &str = r#"{"type":"record","name":"Order","namespace":"shop","fields":[
    {"name":"id","type":{"type":"string","logicalType":"uuid"}},
    {"name":"lines","type":{"type":"array","items":{"type":"record","name":"Line","fields":[
        {"name":"price","type":"int"},{"name":"state","type":{"type":"enum","name":"State","symbols":["NEW","SENT"]}}]}}},
    {"name":"notes","type":{"type":"map","values":["null","string","Line"]}},
    {"name":"paid","type":"boolean"},{"name":"rate","type":"double"},{"name":"hash","type":{"type":"fixed","name":"Hash","size":3}},
    {"name":"at","type":{"type":"long","logicalType":"timestamp-micros"}},
    {"name":"sum","type":{"type":"bytes","logicalType":"decimal","precision":9,"scale":2}}]}"#;
const NODE: &str = r#"{"type":"record","name":"Node","fields":[{"name":"next","type":["null","Node"]}]}"#;

fn why(schema: &str, body: &[u8]) -> Option<String> {
    match AvroSchema::parse(schema).expect(schema).check(body) {
        Checked::Fine => None,
        Checked::Poison(violation) => {
            assert_eq!(violation.code, "schema.invalid");
            Some(violation.message)
        }
        other => panic!("{other:?}"),
    }
}

/// What the library writes.
fn encoded(schema: &str, value: Value) -> Vec<u8> {
    let schema = Schema::parse_str(schema).expect("a schema");
    apache_avro::to_avro_datum(&schema, value).expect("it fits")
}

fn order() -> Vec<u8> {
    let line = |price| {
        Value::Record(vec![
            ("price".to_owned(), Value::Int(price)),
            ("state".to_owned(), Value::Enum(1, "SENT".to_owned())),
        ])
    };
    let text = |text: &str| Value::Union(1, Box::new(Value::String(text.to_owned())));
    let notes = [("a".to_owned(), text("ü")), ("b".to_owned(), Value::Union(2, Box::new(line(-70_000))))];
    let value = Value::Record(vec![
        ("id".to_owned(), Value::Uuid("0192f7a0-5c1e-7a3e-b1f2-000000000001".parse().expect("a UUID"))),
        ("lines".to_owned(), Value::Array(vec![line(1), line(i32::MAX)])),
        ("notes".to_owned(), Value::Map(notes.into_iter().collect())),
        ("paid".to_owned(), Value::Boolean(true)),
        ("rate".to_owned(), Value::Double(0.5)),
        ("hash".to_owned(), Value::Fixed(3, vec![1, 2, 3])),
        ("at".to_owned(), Value::TimestampMicros(i64::MIN)),
        ("sum".to_owned(), Value::Decimal(vec![1, 0].into())),
    ]);
    encoded(ORDER, value)
}

#[test]
fn what_the_library_writes_is_passed_whole() {
    let body = order();
    assert_eq!(why(ORDER, &body), None);
    for cut in 0..body.len() {
        assert!(why(ORDER, &body[..cut]).is_some(), "cut at {cut}");
    }
    let more = [&body[..], &[0]].concat();
    assert_eq!(why(ORDER, &more).as_deref(), Some("the payload: 1 bytes are left behind its end"));
}

#[test]
fn where_it_breaks_is_told_and_no_value_is() {
    let lines = r#"{"type":"record","name":"O","fields":[{"name":"items","type":{"type":"array","items":
        {"type":"record","name":"L","fields":[{"name":"price","type":"int"}]}}}]}"#;
    // Two items, and the second is a number of 64 bits.
    let body = [4, 2, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 0];
    assert_eq!(why(lines, &body).as_deref(), Some("/items/1/price: no int of 32 bits"));
    for (schema, body, expected) in [
        (r#""boolean""#, &[2_u8][..], "neither true nor false"),
        (r#""string""#, &[4, 0xff, 0xfe], "text that is not UTF-8"),
        (r#""string""#, &[1], "a length below 0"),
        (r#"["null","int"]"#, &[4], "no such branch: there are 2"),
        (r#"{"type":"enum","name":"E","symbols":["A"]}"#, &[2], "no such symbol: there are 1"),
        (r#""long""#, &[0xff; 11], "no long of 64 bits"),
        (r#""int""#, &[], "the bytes end here"),
    ] {
        let found = why(schema, body).unwrap_or_else(|| panic!("{schema} takes {body:?}"));
        assert_eq!(found, format!("the payload: {expected}"));
    }
}

/// A million nodes in each other would be a million frames of the stack.
#[test]
fn f49_a_schema_that_recurses_is_walked_to_a_bound() {
    let list = |nodes: usize| [vec![2_u8; nodes], vec![0]].concat();
    assert_eq!(why(NODE, &list(60)), None);
    let deep = why(NODE, &list(1_000_000)).expect("refused");
    assert!(deep.starts_with("/next/next/") && deep.len() < 1_300, "{deep}");
    // One that needs no byte to go deeper, and one that has two ways at each step.
    let endless =
        r#"{"type":"record","name":"A","fields":[{"name":"a","type":"A"},{"name":"b","type":"A"}]}"#;
    assert!(why(endless, &[]).is_some());
    let mut wide = r#""null""#.to_owned();
    for level in 0..30 {
        wide = format!(
            r#"{{"type":"record","name":"R{level}","fields":[{{"name":"a","type":{wide}}},{{"name":"b","type":"{}"}}]}}"#,
            if level == 0 { "null".to_owned() } else { format!("R{}", level - 1) }
        );
    }
    let words = why(&wide, &[]).expect("a thousand million values of no bytes");
    assert!(words.ends_with("it has too many values"), "{words}");
}

/// Items that take no bytes: ten bytes could stand for billions.
#[test]
fn f49_a_bomb_of_items_without_bytes_is_refused_at_once() {
    let nulls = r#"{"type":"array","items":"null"}"#;
    assert_eq!(why(nulls, &[200, 1, 0]), None, "a hundred are fine");
    let bomb = [0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 0];
    let words = why(nulls, &bomb).expect("refused");
    assert!(words.ends_with("it has too many values"), "{words}");
    // A length that nobody could allocate, and the lowest count there is.
    assert!(why(r#""bytes""#, &bomb).is_some());
    assert!(why(nulls, &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 0, 0]).is_some());
}

#[test]
fn a_name_that_is_not_defined_is_no_schema() {
    let bad = [r#"{"type":"record","name":"A","fields":[{"name":"a","type":"B"}]}"#, "", "{}", r#""strnig""#];
    assert!(bad.iter().all(|text| AvroSchema::parse(text).is_err()));
    let spaces = r#"{"type":"record","name":"A","namespace":"x","fields":[
        {"name":"f","type":{"type":"fixed","name":"F","size":1}},{"name":"g","type":"F"},{"name":"h","type":["null","x.A"]}]}"#;
    assert_eq!(why(spaces, &[1, 1, 2, 1, 1, 0]), None);
}

const PLAIN: &str = r#"{"type":"record","name":"P","fields":[{"name":"a","type":["null","long",{"type":"array","items":"int"}]},
    {"name":"b","type":{"type":"map","values":"boolean"}}]}"#;

proptest! {
    /// Whatever comes, the walk ends; and what it passes, the library can read.
    #[test]
    fn any_bytes_are_fine_or_poison(body in proptest::collection::vec(0_u8..6, 0..12)) {
        why(ORDER, &body);
        for schema in [PLAIN, NODE] {
            let parsed = Schema::parse_str(schema).expect("a schema");
            if why(schema, &body).is_none() {
                let mut rest = &body[..];
                prop_assert!(apache_avro::from_avro_datum(&parsed, &mut rest, None).is_ok(), "{body:?}");
                prop_assert!(rest.is_empty(), "{body:?}");
            }
        }
    }
}
