//! The Rust end of `Console.java`: Kafka's own tools and Java client in one process beside the servers.
//!
//! It belongs to no runtime: a server that all tests of a binary share is used from one runtime after the
//! other, and a pipe of tokio's would end with the first of them. So a thread holds the pipes.

use std::{
    fs::File,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::mpsc,
    thread::JoinHandle,
    time::Duration,
};

use tokio::sync::oneshot;

use super::{
    SERVICE,
    java::{Java, Jvm},
};
use crate::services::ServiceError;

/// Enough for a dump of some 100 MB, which it passes on as it reads.
const JVM: Jvm = Jvm { heap_mb: 256, optimises: false };
/// Kafka's own clients give up after a minute at the latest; tests that share a console wait for each other.
const PATIENCE: Duration = Duration::from_secs(240);

/// One row of an answer; a field is `None` where Java said `null`.
pub(crate) type ConsoleRow = Vec<Option<Vec<u8>>>;
type ConsoleReply = Result<Vec<ConsoleRow>, String>;

/// A running console.
#[derive(Debug)]
pub(crate) struct Console {
    requests: Option<mpsc::Sender<(String, oneshot::Sender<ConsoleReply>)>>,
    child: Child,
    thread: Option<JoinHandle<()>>,
}

impl Console {
    /// Starts it. What it has to say about itself goes to a file in `dir`.
    pub(super) fn start(java: &Java, dir: &Path) -> std::io::Result<Self> {
        java.compile()?;
        let mut child = Command::new(java.program())
            .args(java.args(dir, JVM))
            .arg("Console")
            .current_dir(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(dir.join("console.log"))?)
            .spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (requests, inbox) = mpsc::channel();
        let thread = std::thread::Builder::new().name("kafka-console".to_owned()).spawn(move || {
            if let Some((input, output)) = pipes {
                serve(input, BufReader::new(output), &inbox);
            }
        })?;
        Ok(Self { requests: Some(requests), child, thread: Some(thread) })
    }

    /// Sends one command and waits for its rows. `client` holds the properties of the Java client that is to
    /// be used.
    pub(crate) async fn ask(
        &self,
        client: &str,
        command: &str,
        arguments: &[&str],
    ) -> Result<Vec<ConsoleRow>, ServiceError> {
        let fields = [client, command].into_iter().chain(arguments.iter().copied()).map(hex);
        let line = fields.collect::<Vec<_>>().join(" ");
        let (answered, answer) = oneshot::channel();
        let failed = |why: &str| ServiceError::failed(SERVICE, format!("{command} {arguments:?}: {why}"));
        let sent = self.requests.as_ref().is_some_and(|requests| requests.send((line, answered)).is_ok());
        if !sent {
            return Err(failed("the console has ended"));
        }
        match tokio::time::timeout(PATIENCE, answer).await {
            Ok(Ok(Ok(rows))) => Ok(rows),
            Ok(Ok(Err(said))) => Err(failed(&said)),
            Ok(Err(_)) => Err(failed("the console has ended")),
            Err(_) => Err(failed(&format!("no answer after {PATIENCE:?}"))),
        }
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            // Its panic was printed by its own thread.
            let _ = thread.join();
        }
    }
}

/// One request after the other, until one side is gone. Whoever waits then learns it from the dropped sender.
fn serve(
    mut input: ChildStdin,
    mut output: BufReader<ChildStdout>,
    inbox: &mpsc::Receiver<(String, oneshot::Sender<ConsoleReply>)>,
) {
    for (line, answered) in inbox {
        if writeln!(input, "{line}").and_then(|()| input.flush()).is_err() {
            return;
        }
        let Some(answer) = read_answer(&mut output) else { return };
        // Whoever asked may have stopped waiting.
        let _ = answered.send(answer);
    }
}

fn read_answer(output: &mut impl BufRead) -> Option<ConsoleReply> {
    let mut rows = Vec::new();
    loop {
        let mut line = String::new();
        output.read_line(&mut line).ok().filter(|read| *read > 0)?;
        let line = line.trim_end_matches('\n');
        match line.split_once(' ') {
            None if line == "." => return Some(Ok(rows)),
            Some(("!", said)) => return Some(Err(String::from_utf8_lossy(&bytes(said)).into_owned())),
            Some(("+", fields)) => {
                rows.push(fields.split(' ').map(|field| (field != "-").then(|| bytes(field))).collect());
            }
            // A row without fields; the console sends none.
            _ => return None,
        }
    }
}

pub(super) fn hex(bytes: impl AsRef<[u8]>) -> String {
    bytes.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    let digit = |at: usize| hex.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
    (0..hex.len()).step_by(2).filter_map(digit).collect()
}
