//! The heart: a locked file that says that this process lives.
//!
//! A lease ends by expiry, for a host that froze; and by its heart, for a process that died. The heart is a
//! file next to the database, locked for as long as its process lives. The system frees the lock with the
//! process, however it ends, and a successor that can lock the file knows. Being wrong about a death costs
//! nothing, because epochs fence: a former owner that comes back settles nothing.
//!
//! The file's name is kept in the database, its directory is the database's. So processes that reach the file
//! by different paths (a symbolic link, a shared volume) mean the same heart.
//!
//! Refused: a lock on the database file itself. SQLite's own locks are there, and closing any other
//! descriptor of that file would drop them.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// A beating heart. It stops when this is dropped, or with the process.
pub(crate) struct Heart {
    /// Locked. Nothing reads or writes it.
    _file: File,
    path: PathBuf,
    pub(crate) name: String,
}

impl Heart {
    /// Makes a heart next to the database. `None` where the file system knows no locks: leases end by expiry
    /// alone.
    pub(crate) fn start(database: &Path) -> std::io::Result<Option<Self>> {
        let (random, _) = Uuid::new_v4().as_u64_pair();
        let name = format!("{}{random:016x}", prefix(database));
        let path = beside(database, &name);
        let file = OpenOptions::new().write(true).create_new(true).open(&path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self { _file: file, path, name })),
            // Somebody who looked for leftovers was quicker, or there are no locks here.
            Err(TryLockError::WouldBlock) => Err(std::io::ErrorKind::WouldBlock.into()),
            Err(TryLockError::Error(error)) => {
                tracing::warn!(%error, "no file locks here: the death of a relay is noticed when its lease expires");
                let _ = std::fs::remove_file(&path);
                Ok(None)
            }
        }
    }
}

impl Drop for Heart {
    fn drop(&mut self) {
        // A file that is left behind is removed by a sweep.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Whether the process that owns this heart lives. In doubt it does: expiry ends its lease all the same.
pub(crate) fn beats(database: &Path, name: &str) -> bool {
    match File::open(beside(database, name)) {
        Ok(file) => matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)),
        Err(error) => error.kind() != std::io::ErrorKind::NotFound,
    }
}

/// Removes files of hearts that stopped. One that was just made may not be locked yet: those are left alone.
pub(crate) fn remove_stopped(database: &Path) {
    let Some(directory) = database.parent() else { return };
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    let prefix = prefix(database);
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| name.starts_with(&prefix)) else { continue };
        let made = entry.metadata().and_then(|data| data.modified());
        let is_old = made.is_ok_and(|made| made.elapsed().is_ok_and(|age| age.as_secs() > 60));
        if is_old && !beats(database, name) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

fn prefix(database: &Path) -> String {
    let file = database.file_name().map(|name| name.to_string_lossy().into_owned());
    format!("{}-heart-", file.unwrap_or_default())
}

/// A file in the database's directory. Names come from the database: only their last part counts.
fn beside(database: &Path, name: &str) -> PathBuf {
    let name = Path::new(name).file_name().unwrap_or_default();
    database.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heart_beats_until_it_is_dropped_or_its_file_is_gone() {
        let directory = std::env::temp_dir().join(format!("posthaste-heart-{}", Uuid::now_v7()));
        std::fs::create_dir(&directory).expect("a directory");
        let database = directory.join("x.db");
        let heart = Heart::start(&database).expect("a file").expect("locks");
        let name = heart.name.clone();
        assert!(beats(&database, &name));
        assert!(beats(&database, &name), "asking changes nothing");
        drop(heart);
        assert!(!beats(&database, &name));
        let heart = Heart::start(&database).expect("a file").expect("locks");
        std::fs::remove_file(directory.join(&heart.name)).expect("removed");
        assert!(!beats(&database, &heart.name));
        drop(heart);
        std::fs::remove_dir_all(directory).expect("removed");
    }
}
