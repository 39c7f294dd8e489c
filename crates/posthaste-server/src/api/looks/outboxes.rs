//! Who am I, how is everything, what is configured.

use crate::access::{OperatorRole, PayloadRight};
use crate::api::call::ApiCall;
use crate::api::openapi::document;
use crate::api::spec::{NoQuery, json};
use crate::desk::{Examined, OutboxDesk};
use crate::http::ApiProblem;
use crate::picture::{Named, Picture, named};
use axum::http::StatusCode;
use axum::response::Response;
use posthaste::Timestamp;
use posthaste::admin::{Lack, OutboxStatus};
use schemars::JsonSchema;
use serde::Serialize;
use std::sync::Arc;
use tokio::task::JoinSet;

/// Who asks, and what they may.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Me {
    /// The token's name.
    name: String,
    role: OperatorRole,
    payloads: PayloadRight,
    /// Outboxes that the token is for and that are here.
    outboxes: Vec<String>,
    /// Consumers that the token is for; `*` stands for all.
    consumers: Vec<String>,
    /// When the token ends.
    expires: Option<Timestamp>,
    /// Of this process.
    version: &'static str,
    /// Outboxes that can be acted on from here.
    acting: Vec<String>,
}

pub(crate) async fn me(call: ApiCall, _: NoQuery) -> Result<Me, ApiProblem> {
    let desks = call.desks();
    let acting = desks.iter().filter(|desk| desk.outbox.acting.is_some());
    let grant = &call.grant;
    Ok(Me {
        name: grant.name.clone(),
        role: grant.role,
        payloads: grant.payloads,
        acting: acting.map(|desk| desk.name().to_owned()).collect(),
        outboxes: desks.iter().map(|desk| desk.name().to_owned()).collect(),
        consumers: grant.consumers().to_vec(),
        expires: grant.expires(),
        version: env!("CARGO_PKG_VERSION"),
    })
}

/// Not masked: its members are called like those that are, and hold schemas.
pub(crate) async fn openapi(_: ApiCall, _: NoQuery) -> Result<Response, ApiProblem> {
    Ok(json(StatusCode::OK, &document()))
}

/// All at once: one that is away or slow delays its own line only, and that by a bound.
pub(crate) async fn outboxes(call: ApiCall, _: NoQuery) -> Result<Picture, ApiProblem> {
    let desks = call.desks();
    let mut looks = JoinSet::new();
    for (at, desk) in desks.iter().enumerate() {
        let desk = Arc::clone(desk);
        looks.spawn(async move { (at, seen(&desk).await) });
    }
    let mut found: Vec<Option<Named>> = desks.iter().map(|_| None).collect();
    while let Some(look) = looks.join_next().await {
        if let Ok((at, named)) = look {
            found[at] = Some(named);
        }
    }
    let lost = |desk: &OutboxDesk| named(&desk.outbox, Err("the look at it failed".to_owned()));
    let outboxes = found.into_iter().zip(&desks).map(|(found, desk)| found.unwrap_or_else(|| lost(desk)));
    Ok(Picture { outboxes: outboxes.collect() })
}

async fn seen(desk: &OutboxDesk) -> Named {
    let status = desk.look(|admin| async move { admin.status().await }).await;
    named(&desk.outbox, status.map_err(|problem| format!("{} {}", problem.detail, problem.events)))
}

/// One outbox, and what cannot be asked of it.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ShownOutbox {
    #[serde(flatten)]
    named: Named,
    /// What its store cannot do, each with a sentence.
    lacks: &'static [Lack],
    /// Whether it can be acted on from here.
    acting: bool,
}

pub(crate) async fn outbox(call: ApiCall, _: NoQuery) -> Result<ShownOutbox, ApiProblem> {
    let desk = call.desk()?;
    let look = desk.look(|admin| async move { Ok((admin.status().await?, admin.lacks())) });
    let (status, lacks) = look.await?;
    Ok(shown_outbox(&desk, status, lacks))
}

/// An outbox as it was found.
pub(crate) fn shown_outbox(desk: &OutboxDesk, status: OutboxStatus, lacks: &'static [Lack]) -> ShownOutbox {
    ShownOutbox { named: named(&desk.outbox, Ok(status)), lacks, acting: desk.outbox.acting.is_some() }
}

impl ShownOutbox {
    /// As the list of all has it.
    pub(crate) fn named(&self) -> &Named {
        &self.named
    }
}

pub(crate) async fn doctor(call: ApiCall, _: NoQuery) -> Result<Examined, ApiProblem> {
    call.desk()?.examine().await
}
