//! One call of `gateway_append`: its parameters, and what its answer means.

use super::room::{AppendOutcome, QueuedRequest};
use crate::error::{describe, store_error};
use crate::session::{Param, SqlResult};
use posthaste::intake::{Admitted, Idempotency, IntakeError};
use rustc_hash::FxHashMap;
use tokio_postgres::Row;
use tokio_postgres::error::{Severity, SqlState};
use tokio_postgres::types::Type;
use uuid::Uuid;

/// Where a key in flight is waited for. A lock that is waited for anywhere else is nobody's key.
const KEYS: &str = "gateway_requests";

/// How a call has ended.
pub(super) enum CallEnd {
    /// Committed. What is known of earlier requests with keys of this group, by the request's place.
    Done(Earlier),
    /// A key is in flight elsewhere. Nothing is stored.
    Held,
    /// The data was refused. Nothing is stored.
    Refused(String),
    /// It collided with somebody. Nothing is stored.
    Again(String),
    /// The database cannot do it now. Nothing is stored.
    Away(String),
    /// No repetition helps. Nothing is stored.
    Hopeless(String),
    /// There was no answer: a look will tell.
    Lost(String),
    /// It is stored, or not; no look can tell.
    Unknown(String),
}

/// What earlier requests have left: their hash and their ids.
pub(super) type Earlier = FxHashMap<i32, (Vec<u8>, Vec<u8>)>;

/// The values of a call. Requests are numbered by their place in the group; a request whose key another one
/// of the group has brought before is not in it.
pub(super) struct GroupCall<'a> {
    /// For each request the one that stands for it.
    stands_for: Vec<usize>,
    keyed: Vec<i32>,
    tenants: Vec<&'a str>,
    request_topics: Vec<&'a str>,
    request_keys: Vec<&'a str>,
    hashes: Vec<&'a [u8]>,
    request_ids: Vec<Vec<u8>>,
    requests: Vec<i32>,
    ids: Vec<Uuid>,
    topics: Vec<&'a str>,
    keys: Vec<Option<&'a str>>,
    headers: Vec<Option<String>>,
    content_types: Vec<Option<&'a str>>,
    payloads: Vec<Option<&'a [u8]>>,
    deliver_ats: Vec<Option<i64>>,
}

fn bytes_of_ids(waiting: &QueuedRequest) -> Vec<u8> {
    waiting.request.events.iter().flat_map(|event| *event.id.as_bytes()).collect()
}

impl<'a> GroupCall<'a> {
    pub(super) fn new(group: &'a [QueuedRequest]) -> Self {
        let count = group.iter().map(|waiting| waiting.request.events.len()).sum();
        let mut call = Self {
            stands_for: Vec::with_capacity(group.len()),
            keyed: Vec::new(),
            tenants: Vec::new(),
            request_topics: Vec::new(),
            request_keys: Vec::new(),
            hashes: Vec::new(),
            request_ids: Vec::new(),
            requests: Vec::with_capacity(count),
            ids: Vec::with_capacity(count),
            topics: Vec::with_capacity(count),
            keys: Vec::with_capacity(count),
            headers: Vec::with_capacity(count),
            content_types: Vec::with_capacity(count),
            payloads: Vec::with_capacity(count),
            deliver_ats: Vec::with_capacity(count),
        };
        let mut first_of = FxHashMap::default();
        for (place, waiting) in group.iter().enumerate() {
            let request = &waiting.request;
            let first = match &request.idempotency {
                Some(Idempotency { key, .. }) => {
                    *first_of.entry((&*request.tenant, &*request.topic, &**key)).or_insert(place)
                }
                None => place,
            };
            call.stands_for.push(first);
            if first == place {
                call.add(place as i32, waiting);
            }
        }
        call
    }

    fn add(&mut self, place: i32, waiting: &'a QueuedRequest) {
        let request = &waiting.request;
        if let Some(Idempotency { key, hash }) = &request.idempotency {
            self.keyed.push(place);
            self.tenants.push(&request.tenant);
            self.request_topics.push(&request.topic);
            self.request_keys.push(key);
            self.hashes.push(hash);
            self.request_ids.push(bytes_of_ids(waiting));
        }
        for event in &request.events {
            self.requests.push(place);
            self.ids.push(event.id);
            self.topics.push(&event.topic);
            self.keys.push(event.key.as_deref());
            self.headers.push(event.headers.to_json());
            self.content_types.push(event.content_type.as_deref());
            self.payloads.push(event.payload.as_deref());
            self.deliver_ats.push(event.deliver_at.map(|at| at.0));
        }
    }

    /// The parameters of `append.sql`.
    pub(super) fn params(&'a self, commit: &'a Uuid) -> [Param<'a>; 15] {
        [
            (commit, Type::UUID),
            (&self.keyed, Type::INT4_ARRAY),
            (&self.tenants, Type::TEXT_ARRAY),
            (&self.request_topics, Type::TEXT_ARRAY),
            (&self.request_keys, Type::TEXT_ARRAY),
            (&self.hashes, Type::BYTEA_ARRAY),
            (&self.request_ids, Type::BYTEA_ARRAY),
            (&self.requests, Type::INT4_ARRAY),
            (&self.ids, Type::UUID_ARRAY),
            (&self.topics, Type::TEXT_ARRAY),
            (&self.keys, Type::TEXT_ARRAY),
            (&self.headers, Type::TEXT_ARRAY),
            (&self.content_types, Type::TEXT_ARRAY),
            (&self.payloads, Type::BYTEA_ARRAY),
            (&self.deliver_ats, Type::INT8_ARRAY),
        ]
    }

    /// The parameters of `requests.sql`.
    pub(super) fn keys(&'a self) -> [Param<'a>; 4] {
        [
            (&self.keyed, Type::INT4_ARRAY),
            (&self.tenants, Type::TEXT_ARRAY),
            (&self.request_topics, Type::TEXT_ARRAY),
            (&self.request_keys, Type::TEXT_ARRAY),
        ]
    }

    pub(super) fn has_keys(&self) -> bool {
        !self.keyed.is_empty()
    }

    /// Of what is remembered after the commit, what is not of this group.
    pub(super) fn earlier(&self, rows: &[Row]) -> Earlier {
        let mut earlier = earlier(rows);
        for (place, ids) in self.keyed.iter().zip(&self.request_ids) {
            if earlier.get(place).is_some_and(|(_, stored)| stored == ids) {
                earlier.remove(place);
            }
        }
        earlier
    }

    /// What each request of a committed group is answered, and how many events were stored.
    pub(super) fn outcomes(&self, group: &[QueuedRequest], earlier: &Earlier) -> (Vec<AppendOutcome>, usize) {
        let mut stored = self.requests.len();
        for place in earlier.keys() {
            stored -= group[*place as usize].request.events.len();
        }
        let outcome = |(place, first): (usize, &usize)| -> AppendOutcome {
            let own = &group[place].request;
            let Some(idempotency) = &own.idempotency else {
                return Ok(Admitted { ids: ids_of(&group[place]), replayed: false });
            };
            let (is_same, ids) = match earlier.get(&(*first as i32)) {
                Some((hash, ids)) => (*hash == idempotency.hash, read_ids(ids)),
                None => {
                    let standing = group[*first].request.idempotency.as_ref();
                    let is_same = standing.is_some_and(|standing| standing.hash == idempotency.hash);
                    (is_same, ids_of(&group[*first]))
                }
            };
            let replayed = place != *first || earlier.contains_key(&(*first as i32));
            if is_same { Ok(Admitted { ids, replayed }) } else { Err(IntakeError::KeyReused) }
        };
        (self.stands_for.iter().enumerate().map(outcome).collect(), stored)
    }
}

fn ids_of(waiting: &QueuedRequest) -> Vec<Uuid> {
    waiting.request.events.iter().map(|event| event.id).collect()
}

fn read_ids(ids: &[u8]) -> Vec<Uuid> {
    ids.chunks_exact(16).filter_map(|id| Uuid::from_slice(id).ok()).collect()
}

fn earlier(rows: &[Row]) -> Earlier {
    rows.iter().map(|row| (row.get(0), (row.get(1), row.get(2)))).collect()
}

/// Judges what a call has answered. `is_closed`: the connection is gone.
pub(super) fn judge(answer: SqlResult<Vec<Row>>, is_closed: bool) -> CallEnd {
    let error = match answer {
        Ok(rows) => return CallEnd::Done(earlier(&rows)),
        Err(error) => error,
    };
    let Some(db) = error.as_db_error() else { return CallEnd::Lost(describe(&error)) };
    let code = db.code();
    let class = code.code().get(..2).unwrap_or_default();
    // Whatever ends the connection may have come after the commit. 08 and 57P are what poolers say, too.
    let ends = is_closed || db.parsed_severity().is_some_and(|severity| severity != Severity::Error);
    if ends || class == "08" || code.code().starts_with("57P") || code.code() == "40003" {
        return CallEnd::Lost(describe(&error));
    }
    match class {
        _ if *code == SqlState::LOCK_NOT_AVAILABLE => match db.where_() {
            // The words are translated, the statement in them is not.
            Some(place) if place.contains(KEYS) => CallEnd::Held,
            _ => CallEnd::Again(describe(&error)),
        },
        "22" | "23" | "44" | "54" | "P0" => CallEnd::Refused(db.message().to_owned()),
        "40" => CallEnd::Again(describe(&error)),
        _ => match store_error(error) {
            error if error.is_transient() => CallEnd::Away(error.to_string()),
            error => CallEnd::Hopeless(error.to_string()),
        },
    }
}
