//! Operators: replays, discards, seeks, and repeats of a range.

use super::super::world::lock;
use super::world::{CONSUMER, ConsumerWorld, TOPIC};
use crate::faults::Dice;
use posthaste::admin::history::History;
use posthaste::consumer::identity::order_id;
use posthaste::consumer::store::Work;
use posthaste::source::{Delivery, Partition, Ticket};
use std::sync::Arc;

/// One act.
pub(super) async fn act(world: &ConsumerWorld, dice: &mut Dice) {
    let partition =
        Partition::new(TOPIC, i32::try_from(dice.index(world.scenario.partitions as usize)).unwrap_or(0));
    match dice.index(6) {
        0..=2 => {
            for (letter, id) in letters(world) {
                if dice.happens(0.5) {
                    world.note(format_args!("{id} is mended and replayed"));
                    lock(&world.ledger).mended.insert(id);
                    world.database.replay(CONSUMER, letter).await;
                }
            }
        }
        3 => {
            if let Some((letter, id)) = letters(world).pop() {
                discard(world, letter, id).await;
            }
        }
        4 => {
            let tables = world.database.tables();
            let row = tables.partitions.get(&(CONSUMER.to_owned(), partition.clone()));
            if let Some(position) = row.and_then(|row| row.position) {
                let to = position - dice.between(0, 20).min(u64::try_from(position).unwrap_or(0)) as i64;
                world.note(format_args!("{partition} is moved from {position} to {to}"));
                world.database.seek(CONSUMER, &partition, to);
            }
        }
        _ => repeat(world, &partition, dice),
    }
}

fn letters(world: &ConsumerWorld) -> Vec<(uuid::Uuid, String)> {
    let tables = world.database.tables();
    let letters = tables.letters_of(CONSUMER);
    let letters: Vec<(uuid::Uuid, String)> =
        letters.iter().map(|letter| (letter.burial.letter, letter.row.work.id.to_string())).collect();
    lock(&world.ledger).died.extend(letters.iter().map(|(_, id)| id.clone()));
    letters
}

async fn discard(world: &ConsumerWorld, letter: uuid::Uuid, id: String) {
    world.note(format_args!("{id} is discarded"));
    lock(&world.ledger).discarded.insert(id);
    world.database.discard(CONSUMER, letter).await;
}

pub(super) async fn discard_all(world: &ConsumerWorld) {
    for (letter, id) in letters(world) {
        discard(world, letter, id).await;
    }
}

/// Copies a range that ends at the saved position, at most. What is in it is done once more.
fn repeat(world: &ConsumerWorld, partition: &Partition, dice: &mut Dice) {
    let tables = world.database.tables();
    let row = tables.partitions.get(&(CONSUMER.to_owned(), partition.clone()));
    let Some(to) = row.and_then(|row| row.position) else { return };
    let from = to - dice.between(0, 5) as i64;
    let entries = world.broker.entries(TOPIC);
    let log = &entries[usize::try_from(partition.number).unwrap_or(0)];
    let done = |id: &str| tables.effects.iter().any(|effect| effect.id == id);
    let mut range: Vec<Work> = Vec::new();
    for position in from.max(0)..to {
        let (message, at) = &log[usize::try_from(position).unwrap_or(0)];
        let id = message.id.clone().unwrap_or_default();
        if !done(&id) || range.iter().any(|work| *work.id == *id) {
            continue;
        }
        let ticket = Ticket { partition: partition.clone(), epoch: 0, number: position };
        let delivery = Delivery {
            ticket,
            position: Some(position),
            redelivery: None,
            published_at: Some(*at),
            address: None,
            message: message.clone(),
        };
        let order_id = order_id(world.scenario.order, &delivery);
        *lock(&world.ledger).repeats.entry(id.clone()).or_insert(0) += 1;
        range.push(Work {
            delivery: Arc::new(delivery),
            id: id.into(),
            order_id,
            attempts: 0,
            history: History::default(),
        });
    }
    world.note(format_args!("{} messages of {partition} are repeated", range.len()));
    world.database.copy_range(CONSUMER, &range, true);
}
