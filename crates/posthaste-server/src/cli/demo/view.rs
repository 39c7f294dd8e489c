//! What people see: a live view on a terminal, plain lines anywhere else.
//!
//! Lines tell what happened and, in front, which guarantee covered it. On a terminal three bars below them
//! show how far orders, broker and billing are. Everything fits into 80 columns. With `--json` the story goes
//! to standard error and the ledger, as one document, to standard output. `NO_COLOR` takes the colours away,
//! not the bars.

use super::gauge::GaugeReading;
use crate::demo::ledger::{Ledger, LedgerLine};
use crate::demo::stage::Stage;
use crate::output::{Out, escape, remark, shell_word, thousands as n};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

const WIDTH: usize = 80;

/// Time and guarantee, in front of a line.
const MARGIN: usize = 15;

/// Between two progress lines without a terminal; and behind the story, which has no end.
const PLAIN_PAUSE: Duration = Duration::from_secs(2);
const STEADY_PAUSE: Duration = Duration::from_secs(30);

/// Rates are over this time: long enough to be read, short enough to show an outage.
const RATE_WINDOW: Duration = Duration::from_millis(1_000);

/// A bar: its name, how far it is, and the numbers.
const TEMPLATE: &str = "  {prefix:<8}[{bar:22}] {msg}";

#[derive(Debug, Clone, Copy)]
enum Tone {
    Good,
    Bad,
    Strong,
    Quiet,
}

pub(super) struct View {
    out: Out,
    start: Instant,
    color: bool,
    live: Option<ProgressBars>,
    shown: Cell<Instant>,
    pause: Cell<Duration>,
    past: RefCell<VecDeque<(Instant, GaugeReading)>>,
}

struct ProgressBars {
    all: MultiProgress,
    orders: ProgressBar,
    broker: ProgressBar,
    billing: ProgressBar,
}

impl ProgressBars {
    fn new(events: u64) -> Self {
        let all = MultiProgress::with_draw_target(ProgressDrawTarget::stdout_with_hz(15));
        // A test parses it, too: the template is ours.
        let style = ProgressStyle::with_template(TEMPLATE)
            .unwrap_or_else(|_| ProgressStyle::default_bar())
            .progress_chars("=> ");
        let bar = |name: &'static str| {
            let bar = all.add(ProgressBar::new(events).with_style(style.clone()).with_prefix(name));
            bar.tick();
            bar
        };
        let (orders, broker, billing) = (bar("orders"), bar("broker"), bar("billing"));
        Self { all, orders, broker, billing }
    }
}

impl View {
    pub(super) fn new(out: Out, events: u64) -> Self {
        let is_terminal =
            std::io::stdout().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
        let start = Instant::now();
        Self {
            out,
            start,
            color: is_terminal
                && !out.json
                && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
            live: (is_terminal && !out.json && events > 0).then(|| ProgressBars::new(events)),
            shown: Cell::new(start),
            pause: Cell::new(PLAIN_PAUSE),
            past: RefCell::default(),
        }
    }

    /// Something happened, and this guarantee covered it.
    pub(super) fn say(&self, guarantee: &str, text: &str) -> anyhow::Result<()> {
        let time = format!("{:.1} s", self.start.elapsed().as_secs_f64());
        for (index, line) in wrap(&escape::line(text), WIDTH - MARGIN).iter().enumerate() {
            let front = match index {
                0 => format!(
                    "{}  {}  ",
                    self.paint(&format!("{time:>6}"), Tone::Quiet),
                    self.paint(&format!("{guarantee:<5}"), Tone::Good)
                ),
                _ => " ".repeat(MARGIN),
            };
            self.line(&format!("{front}{line}"))?;
        }
        Ok(())
    }

    /// An address, on a line of its own: a terminal makes it one that can be followed.
    pub(super) fn link(&self, link: &str) -> anyhow::Result<()> {
        self.line(&format!("{}{}", " ".repeat(MARGIN), self.paint(link, Tone::Strong)))
    }

    /// A file, as it is.
    pub(super) fn quote(&self, text: &str) -> anyhow::Result<()> {
        self.line("")?;
        for line in text.lines() {
            let line = if line.is_empty() { String::new() } else { format!("    {}", escape::line(line)) };
            self.line(&self.paint(&line, Tone::Quiet))?;
        }
        self.line("")
    }

    /// How far things are.
    pub(super) fn show(&self, seen: &GaugeReading) -> anyhow::Result<()> {
        let [orders, broker, billing] = self.rates(seen);
        match &self.live {
            Some(live) => {
                let show = |bar: &ProgressBar, done: u64, rate: u64, text: String| {
                    // Behind the story there is no end that is known.
                    if bar.length().is_some_and(|length| length < seen.committed) {
                        bar.set_length(seen.committed);
                    }
                    bar.set_position(done);
                    bar.set_message(format!("{text:<36}{:>6}/s", n(rate)));
                };
                let (done, lost) = (n(seen.committed), n(seen.rolled_back));
                show(
                    &live.orders,
                    seen.committed,
                    orders,
                    format!("{done:>7} committed {lost:>6} rolled back"),
                );
                let (done, dead) = (n(seen.delivered), n(seen.dead));
                show(&live.broker, seen.delivered, broker, format!("{done:>7} delivered {dead:>6} dead"));
                let (done, refused) = (n(seen.applied), n(seen.refused));
                show(
                    &live.billing,
                    seen.applied,
                    billing,
                    format!("{done:>7} applied   {refused:>6} refused"),
                );
                Ok(())
            }
            None if self.shown.get().elapsed() >= self.pause.get() => {
                self.shown.set(Instant::now());
                let (committed, delivered, applied) = (n(seen.committed), n(seen.delivered), n(seen.applied));
                let text = format!("committed {committed}, delivered {delivered}, applied {applied}");
                self.say("", &format!("{text} ({}/s)", n(billing)))
            }
            None => Ok(()),
        }
    }

    /// Events a second: committed, delivered, applied.
    fn rates(&self, seen: &GaugeReading) -> [u64; 3] {
        let now = Instant::now();
        let mut past = self.past.borrow_mut();
        past.push_back((now, *seen));
        while past.len() > 2 && past[1].0 + RATE_WINDOW <= now {
            past.pop_front();
        }
        let (then, before) = past[0];
        let seconds = (now - then).as_secs_f64().max(0.1);
        let rate = |now: u64, before: u64| (now.saturating_sub(before) as f64 / seconds) as u64;
        [
            rate(seen.committed, before.committed),
            rate(seen.delivered, before.delivered),
            rate(seen.applied, before.applied),
        ]
    }

    /// From now on it is told less often how far things are.
    pub(super) fn calm_down(&self) {
        self.pause.set(STEADY_PAUSE);
    }

    /// Takes the bars away: the story is over.
    pub(super) fn clear(&self) {
        if let Some(live) = &self.live {
            for bar in [&live.orders, &live.broker, &live.billing] {
                bar.finish_and_clear();
            }
            // Only the terminal could fail here, and it is the one that would be told.
            let _ = live.all.clear();
        }
    }

    pub(super) fn ledger(&self, ledger: &Ledger) -> anyhow::Result<()> {
        if self.out.json {
            return self.out.data(ledger, String::new);
        }
        let title = "Ledger, counted from the files:";
        let lines = ledger.lines.iter().map(|line| self.ledger_line(line));
        let wrong = ledger.lines.iter().filter(|line| !line.holds).count();
        let verdict = match wrong {
            0 => self.paint("It balances.", Tone::Good),
            1 => self.paint("It does NOT balance: 1 line is wrong.", Tone::Bad),
            _ => self.paint(&format!("It does NOT balance: {wrong} lines are wrong."), Tone::Bad),
        };
        let text = lines.collect::<Vec<_>>().join("\n");
        // Colours are ours, and nothing in it is anybody else's.
        self.out.exact(&format!("\n{}\n\n{text}\n\n{verdict}", self.paint(title, Tone::Strong)))
    }

    fn ledger_line(&self, line: &LedgerLine) -> String {
        let mark = if line.holds { self.paint("ok", Tone::Good) } else { self.paint("WRONG", Tone::Bad) };
        format!("  {}  {:<68}{mark}", self.paint(line.guarantee, Tone::Good), line.text)
    }

    /// How to go on in the files that were kept: commands that work as they are.
    pub(super) fn look_around(&self, stage: &Stage) -> anyhow::Result<()> {
        let program = program();
        let config = shell_word(&stage.config().display().to_string());
        let dir = shell_word(&stage.dir().display().to_string());
        let commands = [
            format!("export POSTHASTE_CONFIG={config}"),
            format!("{program} status"),
            format!("{program} events list --key {}order-000002", stage.key_prefix()),
            format!("{program} events show {}", stage.dead_letter()?),
            format!("{program} dead list"),
            format!("{program} local groups"),
            format!("{program} demo --audit {dir}"),
        ];
        let text = format!("\nThe files are kept in {dir}. Look around:\n\n  {}", commands.join("\n  "));
        if self.out.json {
            remark(&text);
            return Ok(());
        }
        self.out.text(&text)
    }

    /// Ended by a signal. Nothing can go wrong here any more.
    pub(super) fn say_goodbye(&self, how: &str, files: &str) {
        remark(&format!("{how}: nothing is left running, the files are {files}"));
    }

    fn line(&self, text: &str) -> anyhow::Result<()> {
        match &self.live {
            // An empty line must still be one.
            Some(live) => Ok(live.all.println(if text.is_empty() { " " } else { text })?),
            None if self.out.json => {
                remark(text);
                Ok(())
            }
            None => self.out.bytes(format!("{text}\n").as_bytes()),
        }
    }

    fn paint(&self, text: &str, tone: Tone) -> String {
        let code = match tone {
            Tone::Good => 32,
            Tone::Bad => 31,
            Tone::Strong => 1,
            Tone::Quiet => 2,
        };
        if self.color && !text.is_empty() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// This program, as it was called. What `cargo run` starts is not in the path.
fn program() -> String {
    let called = std::env::args().next().filter(|name| name.contains('/'));
    called.map_or_else(|| "posthaste".to_owned(), |name| shell_word(&name))
}

/// Lines of at most so many characters. A word that is longer than a line stays whole.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.len() - 1;
        if lines[last].is_empty() {
            lines[last].push_str(word);
        } else if lines[last].chars().count() + 1 + word.chars().count() <= width {
            lines[last].push(' ');
            lines[last].push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_wrapped_at_words() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("a verylongword b", 5), ["a", "verylongword", "b"]);
        assert_eq!(wrap("", 5), [""]);
    }

    #[test]
    fn the_bars_have_a_template_that_works() {
        assert!(ProgressStyle::with_template(TEMPLATE).is_ok());
    }
}
