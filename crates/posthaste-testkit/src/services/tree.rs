//! Processes as `/proc` shows them: who is whose child, to kill a server with all its processes and to know
//! when they are gone, and whether a process stands still.

use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

/// A process, not confused with a later one of the same pid.
#[derive(Clone, Copy, Debug)]
pub(super) struct Relative {
    pid: Pid,
    started: u64,
}

impl Relative {
    pub(super) fn kill(self) {
        if self.is_alive() {
            let _ = kill_process(self.pid, Signal::KILL);
        }
    }

    /// A zombie holds no memory, no lock and no socket any more: it is gone, though perhaps nobody reaps it.
    pub(super) fn is_alive(self) -> bool {
        Stat::of(self.pid)
            .is_some_and(|stat| stat.started == self.started && !matches!(stat.state, 'Z' | 'X'))
    }
}

/// The processes whose parent is `parent` now.
pub(super) fn children_of(parent: u32) -> Vec<Relative> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok().and_then(Pid::from_raw))
        .filter_map(|pid| Some((pid, Stat::of(pid)?)))
        .filter(|(_, stat)| stat.parent == parent)
        .map(|(pid, stat)| Relative { pid, started: stat.started })
        .collect()
}

/// Whether each thread of the process has stopped. The signal stops them one after the other, and one that is
/// still on its way may answer a client.
pub(super) fn is_stopped(pid: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    threads.flatten().all(|thread| match Stat::read(&thread.path().join("stat")) {
        Some(stat) => matches!(stat.state, 'T' | 't' | 'Z' | 'X'),
        // It ended between the two looks.
        None => true,
    })
}

/// The three fields of `/proc/<pid>/stat` that matter here (proc_pid_stat(5)).
struct Stat {
    state: char,
    parent: u32,
    started: u64,
}

impl Stat {
    fn of(pid: Pid) -> Option<Self> {
        Self::read(Path::new(&format!("/proc/{}/stat", pid.as_raw_nonzero())))
    }

    fn read(file: &Path) -> Option<Self> {
        let text = std::fs::read_to_string(file).ok()?;
        // The second field, the name, is in parentheses and may hold anything, also spaces and parentheses.
        let fields: Vec<_> = text.rsplit_once(')')?.1.split_whitespace().collect();
        Some(Self {
            state: fields.first()?.chars().next()?,
            parent: fields.get(1)?.parse().ok()?,
            started: fields.get(19)?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_child_is_found_and_seen_to_die() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("cat starts");
        let found = children_of(std::process::id());
        let cat =
            found.iter().find(|found| found.pid == Pid::from_child(&child)).copied().expect("our own child");
        assert!(cat.is_alive());
        cat.kill();
        child.wait().expect("cat is reaped");
        assert!(!cat.is_alive());
    }

    #[test]
    fn a_process_is_stopped_when_all_its_threads_are() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("cat starts");
        assert!(!is_stopped(child.id()));
        assert!(!is_stopped(std::process::id()), "this thread runs, whatever the others do");
        let _ = kill_process(Pid::from_child(&child), Signal::STOP);
        while !is_stopped(child.id()) {
            std::thread::yield_now(); // pace
        }
        child.kill().expect("killed");
        child.wait().expect("cat is reaped");
    }
}
