//! On a terminal of 80 columns: bars below the story, colours unless they are not wanted, Ctrl-C.

use crate::ground::{FEW, Ground};
use crate::screen::{COLUMNS, Screen};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::fs::File;
use std::io::{Read, Write};
use std::process::Child;

/// A terminal and the demo on it.
struct Terminal {
    line: File,
    demo: Child,
    /// Half of a character, if a read ended in one.
    rest: Vec<u8>,
    screen: Screen,
}

impl Terminal {
    fn start(ground: &Ground, args: &[&str], no_color: bool) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let line = openpt(flags).expect("a terminal");
        grantpt(&line).and_then(|()| unlockpt(&line)).expect("a usable terminal");
        let size = Winsize { ws_row: 24, ws_col: COLUMNS as u16, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&line, size).expect("a size");
        let name = ptsname(&line, Vec::new()).expect("a name").into_string().expect("UTF-8");
        let end = File::options().read(true).write(true).open(name).expect("its other end");
        let mut command = ground.demo_on_terminal(args);
        if no_color {
            command.env("NO_COLOR", "1");
        }
        let handle = || end.try_clone().expect("a handle");
        let demo = command.stdin(handle()).stdout(handle()).stderr(handle()).spawn();
        let demo = demo.expect("setsid and the binary start");
        Self { line: line.into(), demo, rest: Vec::new(), screen: Screen::default() }
    }

    /// Reads on; false at the end. A terminal that nobody writes to any more answers with an error.
    fn read(&mut self) -> bool {
        let mut chunk = [0; 4096];
        let bytes = self.line.read(&mut chunk).unwrap_or(0);
        self.rest.extend_from_slice(&chunk[..bytes]);
        let whole = match std::str::from_utf8(&self.rest) {
            Ok(text) => text.len(),
            Err(error) => error.valid_up_to(),
        };
        let rest = self.rest.split_off(whole);
        let text = String::from_utf8(std::mem::replace(&mut self.rest, rest)).expect("valid so far");
        self.screen.feed(&text);
        bytes > 0
    }

    fn shows(&self, words: &str) -> usize {
        self.screen.lines().iter().filter(|line| line.contains(words)).count()
    }

    fn text(&self) -> String {
        self.screen.lines().join("\n")
    }

    fn code(&mut self) -> Option<i32> {
        self.demo.wait().expect("it ends").code()
    }
}

#[test]
fn the_story_and_the_bars_fit_into_80_columns() {
    for no_color in [false, true] {
        let ground = Ground::new();
        let mut terminal = Terminal::start(&ground, &FEW, no_color);
        let mut with_rates = false;
        while terminal.read() {
            assert!(terminal.shows("orders  [") <= 1, "bars stay in their place:\n{}", terminal.text());
            let bar = |line: &String| line.starts_with("  billing [=") && line.ends_with("/s");
            with_rates |= terminal.screen.lines().iter().any(bar);
        }
        let text = terminal.text();
        assert_eq!(terminal.code(), Some(0), "{text}");
        assert_eq!(terminal.screen.unknown, [""; 0], "every sequence is understood");
        assert_eq!(terminal.screen.colours, !no_color);
        assert!(with_rates, "bars move, also without colours");
        for words in
            ["G2 G7  The relay's breaker is open", "[sinks.local]", "committed 300 = delivered 299 + dead 1"]
        {
            assert_eq!(terminal.shows(words), 1, "{words}: {text}");
        }
        // Every line of ours is indented, but two: whatever else begins in the first column was broken by the
        // edge.
        let broken =
            |line: &&str| !line.is_empty() && !line.starts_with(' ') && !line.starts_with("Ledger, ");
        assert_eq!(text.lines().filter(broken).collect::<Vec<_>>(), ["It balances."], "{text}");
        assert_eq!(terminal.shows("orders  ["), 0, "the bars are gone at the end: {text}");
        assert!(text.ends_with("It balances."), "nothing is drawn after the end: {text}");
    }
}

/// The key, not the signal: the terminal sends it to whoever is in the foreground.
#[test]
fn ctrl_c_on_the_terminal() {
    let ground = Ground::new();
    let mut terminal = Terminal::start(&ground, &FEW, false);
    while terminal.shows("The broker goes away") == 0 {
        assert!(terminal.read(), "it ended too early: {}", terminal.text());
    }
    terminal.line.write_all(b"\x03").expect("a key");
    while terminal.read() {}
    let text = terminal.text();
    assert_eq!(terminal.code(), Some(130), "{text}");
    assert!(text.contains("nothing is left running, the files are removed"), "{text}");
    assert_eq!((ground.children().len(), ground.files().len()), (0, 0), "nothing is left");
}
