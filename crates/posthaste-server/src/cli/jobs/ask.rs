//! An act on everything that a filter matches, as a job: a look first, consent, then the job with its
//! progress.

use super::{drive, reasons, sentence};
use crate::cli::{Context, chunks, explain_act};
use crate::config::Outbox;
use crate::output::{Usage, escape, paragraph, remark, thousands};
use posthaste::admin::job::{JobPlan, JobState, JobStatus, JobStore, Preview};
use serde_json::{Value, json};
use std::process::ExitCode;

/// What is asked for, and in which words.
pub(crate) struct JobAsk<'a> {
    pub(crate) plan: JobPlan,
    /// The act, in answers for programs.
    pub(crate) act: &'a str,
    /// So many of what it is about.
    pub(crate) many: fn(u64) -> String,
    /// What would be done to them, like `would be replayed`.
    pub(crate) would: &'a str,
    /// What was done to them, like `replayed`.
    pub(crate) did: &'a str,
    pub(crate) rate: Option<f64>,
    /// In one transaction, at most.
    pub(crate) chunk: i64,
    /// None beyond this one, as a look before said.
    pub(crate) upto: Option<&'a str>,
    pub(crate) reason: Option<&'a str>,
    pub(crate) dry_run: bool,
    pub(crate) yes: bool,
}

/// What came of it.
pub(crate) enum Asked {
    /// It is done, stopped, or only looked at.
    Ended(ExitCode),
    /// Nothing would go.
    Nothing(Preview),
    /// The login may write no jobs. Whoever asked goes on without one; consent was given.
    NoJobs(Preview),
}

/// Does it, or only looks.
pub(crate) async fn run(
    context: &Context,
    outbox: &Outbox,
    jobs: &dyn JobStore,
    ask: &JobAsk<'_>,
) -> anyhow::Result<Asked> {
    let failed = |error| explain_act(outbox, error);
    let mut seen = jobs.preview(&ask.plan).await.map_err(failed)?;
    if seen.goes == 0 && seen.exact {
        return Ok(Asked::Nothing(seen));
    }
    let mut would = format!("{} {}", how_many(ask, &seen), ask.would);
    if let Some(upto) = ask.upto {
        seen.upto = ask.plan.end(upto, &seen.upto).ok_or_else(|| {
            Usage(format!("--upto {upto:?} is none that a dry run of this kind answers. Nothing was done"))
        })?;
        would.push_str(&format!(", none beyond {}", escape::line(&seen.upto)));
    }
    if ask.dry_run {
        look(context, ask, &seen, &would)?;
        return Ok(Asked::Ended(ExitCode::SUCCESS));
    }
    let question = format!("{} {}", ask.act, how_many(ask, &seen));
    if (seen.goes > 1 || !seen.exact) && !ask.yes && !chunks::agreed(&question, &would)? {
        remark("nothing was done");
        return Ok(Asked::Ended(ExitCode::FAILURE));
    }
    let actor = context.actor(ask.reason.unwrap_or_default());
    let begun = drive::begin(jobs, ask.plan.clone(), &seen, ask.rate, &actor).await.map_err(failed)?;
    let Some((job, lease)) = begun else { return Ok(Asked::NoJobs(seen)) };
    let job = drive::drive(context, jobs, &lease, &job, (ask.chunk, &actor)).await.map_err(failed)?;
    let answer = json!({
        "act": ask.act, "job": job.job, "matched": seen.matched(), "exact": seen.exact, "done": job.done, "left_alone": job.reasons,
        "state": job.state, "stopped": job.state != JobState::Done,
    });
    context.out().acted(answer, Some(&actor), || ended(ask, &job))?;
    Ok(Asked::Ended(if job.state == JobState::Done { ExitCode::SUCCESS } else { ExitCode::FAILURE }))
}

/// Says what would be done, and shows the first few.
pub(crate) fn look(context: &Context, ask: &JobAsk<'_>, seen: &Preview, would: &str) -> anyhow::Result<()> {
    let answer = json!({
        "act": ask.act, "matched": seen.matched(), "goes": seen.goes, "left_alone": seen.left_alone, "exact": seen.exact,
        "upto": seen.upto, "samples": seen.samples, "done": 0, "dry_run": ask.dry_run,
    });
    context.out().data(&answer, || drawn(seen, would))
}

fn drawn(seen: &Preview, would: &str) -> String {
    let mut text = format!("{would}{}", left_alone(seen));
    for sample in &seen.samples {
        text.push_str(&format!("\n{}", draw_sample(sample)));
    }
    if seen.goes > seen.samples.len() as u64 {
        text.push_str("\n  …");
    }
    if !seen.exact {
        let far = "The log is longer than what was looked through. The act goes on behind that, up to number";
        text.push_str(&format!("\n{}", paragraph(&format!("{far} {}.", seen.upto), "")));
    }
    text
}

/// How many would go, as far as that is known.
pub(crate) fn how_many(ask: &JobAsk<'_>, seen: &Preview) -> String {
    let least = if seen.exact { "" } else { "at least " };
    format!("{least}{}", (ask.many)(seen.goes))
}

/// What is left alone and why, behind a sentence.
pub(crate) fn left_alone(seen: &Preview) -> String {
    let left = seen.left_alone.iter();
    let left = left.map(|(code, count)| format!("{} {}", thousands(*count), escape::line(code)));
    match left.collect::<Vec<String>>() {
        left if left.is_empty() => String::new(),
        left => format!("; left alone: {}", left.join(", ")),
    }
}

/// One of those that go, whatever it is: what it is known by, in a line or two.
fn draw_sample(sample: &Value) -> String {
    let text = |name: &str| {
        let text = sample[name].as_str().filter(|text| !text.is_empty());
        text.map(|text| escape::line(text).into_owned())
    };
    let key = text("key").map(|key| format!("key {key}"));
    let parts = [text("letter").or_else(|| text("id")), text("topic"), key, text("error_code")];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    paragraph(&parts.join("  "), "  ")
}

fn ended(ask: &JobAsk<'_>, job: &JobStatus) -> String {
    match job.state {
        JobState::Done if job.left_alone == 0 => format!("{} {}", (ask.many)(job.done), ask.did),
        JobState::Done => {
            format!("{} {}; left alone: {}", (ask.many)(job.done), ask.did, reasons(job))
        }
        JobState::Paused => format!(
            "stopped: {} of {} {}. What is done is done;\n`posthaste jobs resume {} --reason …` does the rest",
            thousands(job.done),
            thousands(job.total.max(job.done + job.left_alone)),
            ask.did,
            job.job
        ),
        _ => sentence(job),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste::admin::EventFilter;

    #[test]
    fn what_was_not_counted_to_its_end_is_a_least() {
        let ask = JobAsk {
            plan: JobPlan::EventsReplay { sink: "s".to_owned(), filter: EventFilter::default() },
            act: "replay",
            many: |count| crate::output::plural(count, "event"),
            would: "would be sent to s again",
            did: "on the way",
            rate: None,
            chunk: 1,
            upto: None,
            reason: None,
            dry_run: true,
            yes: false,
        };
        let seen = Preview { goes: 100_000, exact: false, upto: "9000000".to_owned(), ..Preview::default() };
        let would = format!("{} {}", how_many(&ask, &seen), ask.would);
        assert_eq!(would, "at least 100,000 events would be sent to s again");
        let text = drawn(&seen, &would);
        assert!(text.ends_with("number 9000000."), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let whole = Preview { exact: true, ..seen };
        assert_eq!(how_many(&ask, &whole), "100,000 events");
        assert!(!drawn(&whole, "x").contains("longer"));
    }
}
