//! What it costs to check a payload: the same messages with a schema and without one.

use super::plan::{Mode, ModePlan};
use super::{ConsumeArgs, Wrong, effects, fill, measure};
use crate::Bench;
use crate::load::Load;
use crate::report::{Report, best};
use crate::yard::kafka::KafkaYard;
use posthaste::sink::Message;
use serde_json::json;
use std::sync::Arc;

/// More do not change the time of one.
const MESSAGES: u64 = 100_000;
/// Letters of an order's note: with them it has some 500 bytes.
const NOTE: usize = 200;

/// An order, as a service would describe it.
pub(super) const SCHEMA: &str = r#"{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "additionalProperties": false,
  "required": ["id", "customer", "currency", "total", "lines"],
  "properties": {
    "id": { "type": "integer", "minimum": 0 },
    "customer": { "type": "string", "minLength": 1, "maxLength": 100 },
    "currency": { "enum": ["EUR", "USD", "GBP"] },
    "total": { "type": "number", "minimum": 0 },
    "note": { "type": "string", "maxLength": 1000 },
    "lines": {
      "type": "array", "minItems": 1, "maxItems": 100,
      "items": {
        "type": "object",
        "required": ["sku", "quantity", "price"],
        "properties": {
          "sku": { "type": "string", "pattern": "^[A-Z]{3}-[0-9]+$" },
          "quantity": { "type": "integer", "minimum": 1 },
          "price": { "type": "number" }
        }
      }
    }
  }
}"#;

/// One that keeps the schema.
fn order(load: &Load, index: u64, source: &Arc<str>) -> Message {
    let mut message = effects::message(load, index, source);
    let letters = load.payload(index);
    let note = String::from_utf8_lossy(&letters[..letters.len().min(NOTE)]);
    let line = |n: u64| json!({ "sku": format!("SKU-{}", index + n), "quantity": n + 1, "price": 12.5 });
    let lines: Vec<_> = (0..4).map(line).collect();
    let event = &mut message.stored.event;
    let order = json!({
        "id": index, "customer": event.key, "currency": "EUR", "total": 125.0, "lines": lines, "note": note,
    });
    event.payload = Some(order.to_string().into());
    message.payload.clone_from(&event.payload);
    message
}

pub(super) async fn run(
    bench: &Bench<'_>,
    args: &ConsumeArgs,
    yard: &mut KafkaYard,
    report: &mut Report,
    wrong: &mut Vec<Wrong>,
) -> anyhow::Result<()> {
    let messages = args.messages.min(MESSAGES);
    fill(&bench.load, yard, 0..messages, order).await?;
    let (mut unchecked, mut checked) = (Vec::new(), Vec::new());
    for round in 1..=args.rounds {
        for (name, mode, measured) in
            [("unchecked", Mode::Set, &mut unchecked), ("schema", Mode::Schema, &mut checked)]
        {
            let plan = super::plan(bench, args, mode, round)?;
            let plan = ModePlan { messages, consumer: format!("{name}-{round}"), ..plan };
            measured.push(measure(bench, plan, round == 1, wrong).await?);
        }
    }
    let rate = |rounds: &[super::Measured]| best(&rounds.iter().map(|one| one.per_s).collect::<Vec<_>>());
    let cpu =
        |rounds: &[super::Measured]| rounds.iter().map(|one| one.cpu_us_per_message).fold(f64::NAN, f64::min);
    report.figure("unchecked_per_s", rate(&unchecked), "as set, with orders in JSON");
    report.figure("schema_per_s", rate(&checked), "the same, each checked by a JSON schema");
    let words = "CPU time that checking one takes: of the two processes' the difference";
    report.figure("schema_us_per_message", cpu(&checked) - cpu(&unchecked), words);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Spread;
    use posthaste::schema::{Checked, Validator as _};
    use posthaste_brokers::schema::JsonSchema;

    #[test]
    fn an_order_keeps_the_schema_and_a_letter_too_many_breaks_it() {
        let schema = JsonSchema::parse(SCHEMA.as_bytes()).expect("a schema");
        let load = Load::new(500, 10, Spread::Uniform);
        let payload = order(&load, 7, &"bench".into()).payload.expect("a payload");
        assert!((400..700).contains(&payload.len()), "{}", payload.len());
        assert!(matches!(schema.check(&payload), Checked::Fine));
        let broken = String::from_utf8_lossy(&payload).replace("SKU-", "SKUS-");
        assert!(matches!(schema.check(broken.as_bytes()), Checked::Poison(_)));
    }
}
