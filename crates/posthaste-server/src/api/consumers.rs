//! Consumers: how they are, what waits, and their dead letters.

use super::call::{ApiCall, next};
use super::looks::{LetterCausesQuery, LettersQuery, MessageCausesQuery, MessagesQuery, ShownLetter};
use super::spec::NoQuery;
use crate::consumers::{BrokerView, ShownConsumer};
use crate::desk::OutboxDesk;
use crate::http::ApiProblem;
use axum::http::StatusCode;
use posthaste::consumer::admin::{
    ConsumerLetter, ConsumerStatus, DeferredMessage, LetterCause, MessageCause,
};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use uuid::Uuid;

/// All consumers.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Consumers {
    /// As `posthaste consumers --json` has them.
    consumers: Vec<ShownConsumer>,
    /// Outboxes that could not be asked, with the reason.
    unreachable: BTreeMap<String, String>,
}

pub(crate) async fn consumers(call: ApiCall, _: NoQuery) -> Result<Consumers, ApiProblem> {
    let mut looks = tokio::task::JoinSet::new();
    for desk in call.desks() {
        looks.spawn(async move {
            let found = desk.look_at_consumers(|admin| async move { admin.consumers(None).await }).await;
            (desk, found)
        });
    }
    let (mut consumers, mut unreachable) = (Vec::new(), BTreeMap::new());
    for (desk, found) in looks.join_all().await {
        match found {
            Ok(found) => {
                let found = found.into_iter().flatten();
                let mine = found.filter(|status| call.grant.has_consumer(&status.consumer));
                consumers.extend(mine.map(|status| shown(&desk, status)));
            }
            Err(problem) => {
                unreachable.insert(desk.name().to_owned(), problem.detail);
            }
        }
    }
    consumers.sort_by(|one, two| one.status.consumer.cmp(&two.status.consumer));
    Ok(Consumers { consumers, unreachable })
}

/// Lag is what the owners said last: a look at the API asks no broker.
fn shown(desk: &OutboxDesk, status: ConsumerStatus) -> ShownConsumer {
    ShownConsumer::new(&desk.outbox, status, BrokerView::default())
}

/// The outbox whose database has the inbox of a consumer. For a look: one that cannot be reached hides no
/// other.
pub(crate) async fn desk_of(call: &ApiCall, consumer: &str) -> Result<Arc<OutboxDesk>, ApiProblem> {
    find_desk(call, consumer, false).await
}

/// The same for an act: while a database is silent, another consumer of this name must not be taken for it.
pub(crate) async fn acting_desk_of(call: &ApiCall, consumer: &str) -> Result<Arc<OutboxDesk>, ApiProblem> {
    find_desk(call, consumer, true).await
}

async fn find_desk(call: &ApiCall, consumer: &str, certain: bool) -> Result<Arc<OutboxDesk>, ApiProblem> {
    let setting = call.api.config.consumers.iter().find(|setting| *setting.name == *consumer);
    if let Some(setting) = setting {
        return call.desk_named(&setting.outbox).map_err(|_| unknown(consumer));
    }
    // One that is not configured here is code in a service: whoever knows it has it.
    let mut looks = tokio::task::JoinSet::new();
    for desk in call.desks() {
        let name = consumer.to_owned();
        looks.spawn(async move {
            let look = desk.look_at_consumers(|admin| async move { admin.consumers(Some(&name)).await });
            let found = look.await.map(|found| found.is_some_and(|found| !found.is_empty()));
            (desk, found)
        });
    }
    let (mut having, mut silent) = (Vec::new(), Vec::new());
    for (desk, found) in looks.join_all().await {
        match found {
            Ok(true) => having.push(desk),
            Ok(false) => {}
            Err(problem) => silent.push((desk.name().to_owned(), problem)),
        }
    }
    match (having.len(), silent.pop()) {
        (1, None) => Ok(having.remove(0)),
        (1, Some(_)) if !certain => Ok(having.remove(0)),
        (1, Some((_, problem))) => Err(problem),
        (0, None) => Err(unknown(consumer)),
        (0, Some((outbox, _))) => {
            let mut problem = unknown(consumer);
            problem.detail = format!("{}; outbox `{outbox}` could not be asked", problem.detail);
            Err(problem)
        }
        _ => {
            let names: Vec<&str> = having.iter().map(|desk| desk.name()).collect();
            let why = format!("several outboxes have a consumer `{consumer}`: {}", names.join(", "));
            let advice = "Name it in [consumers] of this configuration, with its outbox.";
            Err(ApiProblem::new(StatusCode::CONFLICT, "api.many_consumers", why, advice))
        }
    }
}

fn unknown(consumer: &str) -> ApiProblem {
    let why = format!("there is no consumer `{consumer}` here");
    ApiProblem::new(StatusCode::NOT_FOUND, "api.unknown_consumer", why, "GET /api/v1/consumers lists them.")
}

pub(crate) async fn consumer(call: ApiCall, _: NoQuery) -> Result<ShownConsumer, ApiProblem> {
    let name = call.part("c").to_owned();
    let desk = desk_of(&call, &name).await?;
    let asked = name.clone();
    let look = desk.look_at_consumers(|admin| async move { admin.consumers(Some(&asked)).await });
    let found = look.await?.into_iter().flatten().next();
    found.map(|status| shown(&desk, status)).ok_or_else(|| unknown(&name))
}

/// A page of a consumer's letters.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ConsumerDead {
    /// Newest first.
    dead: Vec<ConsumerLetter>,
    /// The cursor of the next page.
    next: Option<String>,
}

pub(crate) async fn letters(call: ApiCall, query: LettersQuery) -> Result<ConsumerDead, ApiProblem> {
    let name = call.part("c").to_owned();
    let (desk, limit, filter) = (desk_of(&call, &name).await?, query.limit()?, query.filter(&call)?);
    let before: Option<Uuid> = call.place("letters", &name, query.cursor.as_deref())?;
    let of = name.clone();
    let look = desk
        .look_at_consumers(|admin| async move { admin.letters_newest(&of, &filter, before, limit).await });
    let dead = look.await?.unwrap_or_default();
    let next = next("letters", &name, &dead, limit, |letter| letter.letter.to_string().into());
    Ok(ConsumerDead { dead, next })
}

/// A consumer's letters by cause.
#[derive(Serialize, JsonSchema)]
pub(crate) struct LetterCauses {
    /// The most frequent first.
    causes: Vec<LetterCause>,
}

pub(crate) async fn letter_causes(
    call: ApiCall,
    query: LetterCausesQuery,
) -> Result<LetterCauses, ApiProblem> {
    let name = call.part("c").to_owned();
    let (desk, limit, filter) = (desk_of(&call, &name).await?, query.limit()?, query.filter(&call)?);
    let look =
        desk.look_at_consumers(|admin| async move { admin.letter_causes(&name, &filter, limit).await });
    Ok(LetterCauses { causes: look.await?.unwrap_or_default() })
}

/// A page of what a consumer has set aside.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ConsumerDeferred {
    /// By number.
    deferred: Vec<DeferredMessage>,
    /// The cursor of the next page.
    next: Option<String>,
}

pub(crate) async fn messages(call: ApiCall, query: MessagesQuery) -> Result<ConsumerDeferred, ApiProblem> {
    let name = call.part("c").to_owned();
    let (desk, limit, filter) = (desk_of(&call, &name).await?, query.limit()?, query.filter(&call)?);
    let after: Option<i64> = call.place("messages", &name, query.cursor.as_deref())?;
    let of = name.clone();
    let look = desk
        .look_at_consumers(|admin| async move { admin.deferred_messages(&of, &filter, after, limit).await });
    let deferred = look.await?.unwrap_or_default();
    let next = next("messages", &name, &deferred, limit, |message| message.seq.into());
    Ok(ConsumerDeferred { deferred, next })
}

/// What a consumer has set aside, by cause.
#[derive(Serialize, JsonSchema)]
pub(crate) struct MessageCauses {
    /// The most frequent first.
    causes: Vec<MessageCause>,
}

pub(crate) async fn message_causes(
    call: ApiCall,
    query: MessageCausesQuery,
) -> Result<MessageCauses, ApiProblem> {
    let name = call.part("c").to_owned();
    let (desk, limit, filter) = (desk_of(&call, &name).await?, query.limit()?, query.filter(&call)?);
    let look =
        desk.look_at_consumers(|admin| async move { admin.message_causes(&name, &filter, limit).await });
    Ok(MessageCauses { causes: look.await?.unwrap_or_default() })
}

/// One message's letters.
#[derive(Serialize, JsonSchema)]
pub(crate) struct MessageLetters {
    /// With payload.
    dead: Vec<ShownLetter<ConsumerLetter>>,
}

pub(crate) async fn letter(call: ApiCall, _: NoQuery) -> Result<MessageLetters, ApiProblem> {
    let (name, id) = (call.part("c").to_owned(), call.part("letter").to_owned());
    let desk = desk_of(&call, &name).await?;
    let look = desk.look_at_consumers(|admin| async move { admin.letter(&name, &id).await });
    let letters = look.await?.unwrap_or_default();
    if letters.is_empty() {
        let why = "no dead letter has this id";
        let advice = "It was replayed or discarded: the audit says by whom.";
        return Err(ApiProblem::new(StatusCode::NOT_FOUND, "admin.unknown_event", why, advice));
    }
    call.note_payload(call.part("c"), call.part("letter"));
    let shown = |mut letter: ConsumerLetter| {
        let payload = letter.payload.take();
        ShownLetter::new(letter, payload)
    };
    Ok(MessageLetters { dead: letters.into_iter().map(shown).collect() })
}
