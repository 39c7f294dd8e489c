//! The consumer that is measured, as a service would write it.

use super::effects::{DIES, FAILS};
use super::plan::{Mode, ModePlan};
use super::store::{Idle, Watched};
use super::validation;
use crate::load::number;
use anyhow::{Context as _, Error, bail};
use async_trait::async_trait;
use posthaste::clock::SystemClock;
use posthaste::consumer::{ConsumerPlan, Filter, HandlerError, InboxStore, Message, start as start_consumer};
use posthaste::schema::SchemaChecks;
use posthaste_brokers::schema::JsonSchema;
use posthaste_brokers::{GroupMember, HandlerConfig, SourceConfig, kind_of};
use posthaste_postgres::consumer::mapped::{OffsetsLog, RequestKeys, Traceability};
use posthaste_postgres::consumer::{
    CheckedHandler, Failed, Handler, InboxOptions, InboxTables, OutsideHandler, PostgresInbox, SqlHandler,
    TableMapping,
};
use serde_json::json;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_postgres::Transaction;
use tokio_postgres::types::Type;
use uuid::Uuid;

/// A consumer that settles nothing for this long will not do so at all.
const PATIENCE: Duration = Duration::from_secs(60);

/// Inserts an effect for each message.
struct Insert {
    /// Quoted.
    schema: String,
    mode: Mode,
}

impl Insert {
    /// Fails as the message's key says.
    fn try_out(&self, message: &Message<'_>, key: &str) -> Result<(), HandlerError> {
        let fails = key.starts_with(DIES) || (key.starts_with(FAILS) && message.attempt() <= 3);
        if self.mode == Mode::Faulty && fails {
            return Err(std::io::Error::other("as its key says").into());
        }
        Ok(())
    }
}

/// A message's key and number.
fn effect<'a>(message: &'a Message<'_>) -> Result<(&'a str, i64), HandlerError> {
    let key = std::str::from_utf8(message.message.key.as_deref().unwrap_or_default())?;
    Ok((key, number(Uuid::try_parse(message.id())?) as i64))
}

#[async_trait]
impl Handler for Insert {
    async fn handle(&self, tx: &mut Transaction<'_>, message: &Message<'_>) -> Result<(), HandlerError> {
        let (key, number) = effect(message)?;
        self.try_out(message, key)?;
        let sql = format!("insert into {}.effects (key, number) values ($1, $2)", self.schema);
        tx.execute_typed(&sql, &[(&key, Type::TEXT), (&number, Type::INT8)]).await?;
        Ok(())
    }

    async fn handle_all(&self, tx: &mut Transaction<'_>, batch: &[Message<'_>]) -> Result<(), Failed> {
        if !matches!(self.mode, Mode::Set | Mode::Phoenix | Mode::Tell | Mode::Hot | Mode::Schema) {
            return Err(Failed::OneByOne);
        }
        let effects: Result<Vec<_>, _> = batch.iter().map(effect).collect();
        let (keys, numbers): (Vec<&str>, Vec<i64>) = effects.map_err(Failed::Together)?.into_iter().unzip();
        let schema = &self.schema;
        let sql = format!("insert into {schema}.effects (key, number) select * from unnest($1, $2)");
        let inserted =
            tx.execute_typed(&sql, &[(&keys, Type::TEXT_ARRAY), (&numbers, Type::INT8_ARRAY)]).await;
        inserted.map(drop).map_err(|error| Failed::Together(error.into()))
    }
}

/// The tables of the preset `phoenix` that a healthy message touches, in our schema.
pub(super) fn phoenix(schema: &str) -> InboxTables {
    let table = |name| format!("{schema}.{name}");
    InboxTables::Mapping(Box::new(TableMapping {
        request_keys: RequestKeys { table: table("request_keys"), ..RequestKeys::default() },
        traceability: Some(Traceability { table: table("message_traceability"), suffix: false }),
        offsets: Some(OffsetsLog { table: table("consumer_offsets_log") }),
        dead_letters: None,
    }))
}

async fn store(plan: &ModePlan) -> anyhow::Result<Box<dyn InboxStore>> {
    let handler: Arc<dyn Handler> = match plan.mode {
        Mode::Idle => return Ok(Box::new(Idle)),
        Mode::Http | Mode::Asked => {
            let receiver: HandlerConfig = serde_json::from_value(json!(plan.receiver))?;
            Arc::new(OutsideHandler::new(&plan.schema, receiver.build(&plan.consumer)?))
        }
        Mode::Sql => Arc::new(SqlHandler::new(&plan.schema, &format!("{}.on_event", plan.schema))),
        Mode::Schema => {
            let schema = JsonSchema::parse(validation::SCHEMA.as_bytes()).map_err(Error::msg)?;
            let checks = SchemaChecks::new(vec![(Filter::default(), Arc::new(schema))]);
            let inner = Insert { schema: plan.quoted_schema(), mode: plan.mode };
            Arc::new(CheckedHandler::new(Arc::new(checks), Arc::new(inner)))
        }
        mode => Arc::new(Insert { schema: plan.quoted_schema(), mode }),
    };
    let transactions_max = plan.settings.transactions_max;
    let mut options = InboxOptions { transactions_max, ..InboxOptions::new(&plan.consumer) };
    match plan.mode {
        Mode::Phoenix => options.tables = phoenix(&plan.schema),
        Mode::Http => options.tables = InboxTables::MarkedByApp,
        _ => {}
    }
    let handlers = vec![(Filter::default(), handler)];
    Ok(Box::new(PostgresInbox::connect(plan.postgres(), options, handlers).await?))
}

/// Runs until every message is settled. The time is from the first message that was here to the last commit.
/// Beside it stands how many transactions there were.
pub(super) async fn run(plan: &ModePlan) -> anyhow::Result<(Duration, u64)> {
    let source = json!({"type": kind_of(&plan.brokers), "url": plan.brokers});
    let source: SourceConfig = serde_json::from_value(source)?;
    let mut member = GroupMember::new(&plan.consumer, [&plan.topic]);
    member.in_hand_max = plan.settings.in_hand_max;
    member.order = plan.order;
    let (settled, mut progress) = watch::channel(0);
    let (began, transactions) = (OnceLock::new(), AtomicU64::new(0));
    let (store, tells) = (store(plan).await?, plan.mode == Mode::Tell);
    let watched = Arc::new(Watched { store, tells, began, settled, transactions });
    let leases =
        PostgresInbox::connect(plan.postgres(), InboxOptions::new(&plan.consumer), Vec::new()).await?;
    let source = source.build(&member, Arc::new(leases))?;
    let consumer_plan = ConsumerPlan {
        order: plan.order,
        ..ConsumerPlan::new(plan.consumer.as_str(), source, Arc::clone(&watched) as Arc<_>)
    };
    let (_tuning, settings) = watch::channel(plan.settings.clone());
    let mut consumer = start_consumer(consumer_plan, settings, Arc::new(SystemClock));
    while *progress.borrow_and_update() < plan.messages {
        tokio::select! {
            moved = timeout(PATIENCE, progress.changed()) => match moved {
                Ok(moved) => moved?,
                // Nobody appends while a consumer is only told about.
                Err(_) if plan.mode == Mode::Tell => {}
                Err(_) => bail!("{} of {} messages are settled, and no more: {:?}", *progress.borrow(), plan.messages, consumer.health()),
            },
            why = consumer.failed() => bail!(why),
        }
    }
    let (began, ended) = (watched.began.get().context("no message was there")?, Instant::now());
    consumer.drain().await;
    Ok((ended - *began, watched.transactions.load(Ordering::Relaxed)))
}
