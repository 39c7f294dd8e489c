//! What waits: by sink and number, and by cause.

use super::events::check_key;
use crate::api::call::{ApiCall, limit, next};
use crate::http::ApiProblem;
use posthaste::admin::{DeferredCause, DeferredEvent, DeferredFilter};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// A query for what waits: what it has in common, and what is special to one list of it.
macro_rules! waiting_query {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $member:ident,)* }) => {
        $(#[$about])*
        #[derive(Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        pub(crate) struct $name {
            $($(#[$doc])* pub(crate) $member: Option<String>,)*
            /// Topic pattern, `*` for any run.
            topic: Option<String>,
            /// Of this key.
            key: Option<String>,
            /// That wait for this: retry, outage, scheduled, held, …
            reason: Option<String>,
            /// With this error code.
            code: Option<String>,
            /// At most so many, up to 1000; 50 by default.
            limit: Option<i64>,
        }

        impl $name {
            /// For all sinks and destinations.
            pub(crate) fn filter(&self, call: &ApiCall) -> Result<DeferredFilter, ApiProblem> {
                check_key(call, self.key.as_deref())?;
                Ok(DeferredFilter {
                    topic: self.topic.clone(),
                    key: self.key.clone(),
                    reason: self.reason.clone(),
                    code: self.code.clone(),
                    ..DeferredFilter::default()
                })
            }

            pub(crate) fn limit(&self) -> Result<i64, ApiProblem> {
                limit(self.limit)
            }
        }
    };
}

waiting_query! {
    /// Which of them.
    DeferredQuery {
        /// Of this sink.
        sink,
        /// For this destination.
        destination,
        /// Go on here.
        cursor,
    }
}

waiting_query! {
    /// Causes of which of them.
    DeferredCausesQuery {
        /// Of this sink.
        sink,
        /// For this destination.
        destination,
    }
}

waiting_query! {
    /// Which messages of a consumer.
    MessagesQuery {
        /// Go on here.
        cursor,
    }
}

waiting_query! {
    /// Causes of which messages of a consumer.
    MessageCausesQuery {}
}

/// A page of what waits.
#[derive(Serialize, JsonSchema)]
pub(crate) struct DeferredPage {
    /// By sink and number.
    deferred: Vec<DeferredEvent>,
    /// The cursor of the next page.
    next: Option<String>,
}

pub(crate) async fn deferred_list(call: ApiCall, query: DeferredQuery) -> Result<DeferredPage, ApiProblem> {
    let (desk, limit) = (call.desk()?, query.limit()?);
    let after: Option<(String, i64)> = call.place("deferred", desk.name(), query.cursor.as_deref())?;
    let (sink, destination) = (query.sink.clone(), query.destination.clone());
    let filter = DeferredFilter { sink, destination, ..query.filter(&call)? };
    let look = desk.look(|admin| async move {
        let after = after.as_ref().map(|(sink, seq)| (sink.as_str(), *seq));
        admin.deferred_list(&filter, after, limit).await
    });
    let deferred = look.await?;
    let next = next("deferred", desk.name(), &deferred, limit, |event| json!([event.sink, event.seq]));
    Ok(DeferredPage { deferred, next })
}

/// What waits, by cause.
#[derive(Serialize, JsonSchema)]
pub(crate) struct DeferredCauses {
    /// The most frequent first.
    causes: Vec<DeferredCause>,
}

pub(crate) async fn deferred_causes(
    call: ApiCall,
    query: DeferredCausesQuery,
) -> Result<DeferredCauses, ApiProblem> {
    let (desk, limit) = (call.desk()?, query.limit()?);
    let (sink, destination) = (query.sink.clone(), query.destination.clone());
    let filter = DeferredFilter { sink, destination, ..query.filter(&call)? };
    let causes = desk.look(|admin| async move { admin.deferred_causes(&filter, limit).await }).await?;
    Ok(DeferredCauses { causes })
}
