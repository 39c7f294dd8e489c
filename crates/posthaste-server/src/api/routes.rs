//! The table of routes: everything that the API has, once.

use super::consumers::{consumer, consumers, letter, letter_causes, letters, message_causes, messages};
use super::control::{
    close_session, consumer_control, lanes, open_session, rewind, route_control, sink_control,
};
use super::jobs::{cancel_job, job, jobs, new_job, pause_job, reprocess, resume_job};
use super::live::{series, stream};
use super::looks::{
    config, dead_causes, dead_list, dead_show, deferred_causes, deferred_list, doctor, event, events,
    gateway, me, openapi, outbox, outboxes, payload,
};
use super::spec::Need::{Everything, Nothing, Role, Token};
use super::spec::{Spec, act, bare, look, raw, shared, telling};
use super::trail::{audit, audit_csv};
use super::tuning::{tune, tuning, untune};
use crate::access::OperatorRole::{Admin, Operate, Read};
use axum::http::Method;

/// All of them.
pub(crate) fn routes() -> Vec<Spec> {
    let post = |path| (Method::POST, path);
    let put = |path| (Method::PUT, path);
    let delete = |path| (Method::DELETE, path);
    vec![
        act(
            post("/session"),
            Nothing,
            "Opens a session for a token or a one-time code. No cookie is set.",
            open_session,
        ),
        bare(delete("/session"), Token, "Ends the session that it is sent with.", close_session),
        look("/me", Token, "Who asks, and what they may.", me),
        raw("/openapi.json", Token, "application/json", "This table as an OpenAPI 3.1 document.", openapi),
        look("/outboxes", Role(Read), "How every outbox is, also those that cannot be reached.", outboxes),
        shared(
            "/outboxes/{o}",
            Role(Read),
            "How one is: what is wrong, sinks, lanes, relays, segments, and what its store cannot do.",
            outbox,
        ),
        look("/outboxes/{o}/series", Role(Read), "Its last hour, as far as somebody looked.", series),
        raw(
            "/stream",
            Role(Read),
            "text/event-stream",
            "What changes, as server-sent events: `outboxes`, `consumers`; of one outbox `outbox`, `jobs`, \
             `series`, `point`, `tail`, `tail_at`.",
            stream,
        ),
        bare(
            post("/outboxes/{o}/doctor"),
            Role(Operate),
            "Checks everything that it rests on in its database. Within ten seconds the same answer again.",
            doctor,
        ),
        look(
            "/outboxes/{o}/events",
            Role(Read),
            "Events of the log, oldest first, and how far was looked.",
            events,
        ),
        look("/outboxes/{o}/events/{event}", Role(Read), "One event's life, by its id or its number.", event),
        raw(
            "/outboxes/{o}/events/{event}/payload",
            Role(Read),
            "application/octet-stream",
            "Its payload, byte by byte. Needs the right to see payloads, and is logged.",
            payload,
        ),
        look("/outboxes/{o}/deferred", Role(Read), "Events that wait, by sink and number.", deferred_list),
        shared(
            "/outboxes/{o}/deferred/causes",
            Role(Read),
            "What they wait for, the most frequent first.",
            deferred_causes,
        ),
        look("/outboxes/{o}/dead", Role(Read), "Dead letters, newest first.", dead_list),
        shared(
            "/outboxes/{o}/dead/causes",
            Role(Read),
            "Why they died, the most frequent cause first.",
            dead_causes,
        ),
        look(
            "/outboxes/{o}/dead/{event}",
            Role(Read),
            "One event's dead letters, one for each sink.",
            dead_show,
        ),
        telling::<super::jobs::Reprocess, _, _>(
            post("/outboxes/{o}/dead/reprocess"),
            Role(Operate),
            "Replays dead letters in one call: a job of kind dead.replay; on an adopted table at most 100 of them, at once.",
            reprocess,
        ),
        look("/outboxes/{o}/jobs", Role(Read), "Bulk acts, newest first.", jobs),
        telling::<super::jobs::JobRequest, _, _>(
            post("/outboxes/{o}/jobs"),
            Role(Operate),
            "Begins a bulk act on events, or on messages of a consumer that the token is for; or says with `dry_run` \
             what it would do. Discarding needs the role admin. \
             `Idempotency-Key`: the same key again is the same job again. On an adopted table at most 100 named letters \
             go at once, and no key is kept.",
            new_job,
        ),
        look("/outboxes/{o}/jobs/{job}", Role(Read), "One of them.", job),
        act(
            post("/outboxes/{o}/jobs/{job}/pause"),
            Role(Operate),
            "Stops a job for now, between two chunks.",
            pause_job,
        ),
        act(
            post("/outboxes/{o}/jobs/{job}/resume"),
            Role(Operate),
            "Goes on with a job behind its last chunk.",
            resume_job,
        ),
        act(
            post("/outboxes/{o}/jobs/{job}/cancel"),
            Role(Operate),
            "Stops a job for good. What is done is done.",
            cancel_job,
        ),
        act(
            put("/outboxes/{o}/sinks/{s}/control"),
            Role(Operate),
            "Pauses a sink, resumes it, limits its rate.",
            sink_control,
        ),
        act(
            put("/outboxes/{o}/routes/{r}/control"),
            Role(Operate),
            "Pauses a route, or resumes it.",
            route_control,
        ),
        act(
            post("/outboxes/{o}/sinks/{s}/rewind"),
            Role(Admin),
            "Moves a sink's cursors back: what lies behind is delivered again. Says how many events that are, with \
             `dry_run` without doing it.",
            rewind,
        ),
        act(
            put("/outboxes/{o}/lanes"),
            Role(Admin),
            "Changes the number of lanes; relays share them anew. With `dry_run` it only says whose.",
            lanes,
        ),
        look(
            "/outboxes/{o}/tuning",
            Role(Read),
            "Settings of `[relay]` that can be tuned: the file's value, what is in force, and by whom.",
            tuning,
        ),
        act(
            put("/outboxes/{o}/tuning"),
            Role(Operate),
            "Lays settings over the file's on all relays, for an hour unless told otherwise.",
            tune,
        ),
        act(delete("/outboxes/{o}/tuning"), Role(Operate), "Goes back to the file's settings.", untune),
        look("/audit", Role(Operate), "Who did what, and why, newest first.", audit),
        raw("/audit.csv", Role(Operate), "text/csv", "The same for a spreadsheet.", audit_csv),
        look("/consumers", Role(Read), "How every consumer is.", consumers),
        look(
            "/consumers/{c}",
            Role(Read),
            "How one is: partitions, owners, lag, what its processes say.",
            consumer,
        ),
        look("/consumers/{c}/dead", Role(Read), "Its dead letters, newest first.", letters),
        shared(
            "/consumers/{c}/dead/causes",
            Role(Read),
            "Why they died, the most frequent cause first.",
            letter_causes,
        ),
        look("/consumers/{c}/dead/{letter}", Role(Read), "One letter, or those of one message.", letter),
        look("/consumers/{c}/deferred", Role(Read), "Messages that it set aside, by number.", messages),
        shared(
            "/consumers/{c}/deferred/causes",
            Role(Read),
            "What they wait for, the most frequent first.",
            message_causes,
        ),
        act(
            put("/consumers/{c}/control"),
            Role(Operate),
            "Pauses a consumer, resumes it, limits its rate.",
            consumer_control,
        ),
        shared(
            "/gateway",
            Role(Read),
            "The gateway, and who may hand in events by it; `null` where none is configured, or the token is not for its outbox.",
            gateway,
        ),
        look("/config", Everything(Admin), "The configuration in force, secrets masked.", config),
    ]
}
