//! The commands that dialogs show, run by a shell as they stand: as somebody does who copies one.

use crate::binary::{Ended, finish, posthaste};
use crate::rig::Rig;
use std::path::Path;
use std::process::Command;

/// Those that a script has told of.
pub(crate) fn commands(said: &str) -> Vec<String> {
    let told = said.lines().filter_map(|line| line.strip_prefix("command "));
    told.map(|text| serde_json::from_str(text).expect("a text")).collect()
}

/// Whether it asks whoever runs it, if there is a terminal.
fn asks(command: &str) -> bool {
    ["dead", "deferred", "events"].iter().any(|word| command.starts_with(&format!("posthaste {word} ")))
}

/// Runs one on the configuration of the rig. Nobody is there to be asked.
pub(crate) fn runs(rig: &Rig, command: &str, more: &[&str]) -> Ended {
    let binary = posthaste(&[]);
    let place = Path::new(binary.get_program()).parent().expect("a directory").display();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = Command::new("bash");
    shell.arg("-c").arg(format!("{command} \"$@\"")).arg("bash");
    shell.arg("--config").arg(rig.dir.join("posthaste.toml")).args(more);
    shell.args(asks(command).then_some("--yes")).current_dir(&rig.dir);
    for (name, value) in binary.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell.env("PATH", format!("{place}:{path}"));
    finish(&mut shell)
}
