//! A temporary directory for each service, and the user it belongs to.
//!
//! PostgreSQL and PgBouncer refuse to run as root, and containers and build machines run tests as root. Then
//! the servers run as the user `postgres` (or `nobody`), and their files belong to that user. In all other
//! cases they run as whoever runs the tests.

use std::{
    fs::{DirBuilder, Permissions},
    io,
    os::unix::fs::{DirBuilderExt, PermissionsExt, chown},
    path::{Path, PathBuf},
};

use uuid::Uuid;

/// The user that a server runs as instead of root.
#[derive(Clone, Debug)]
pub(super) struct User {
    pub(super) name: String,
    pub(super) uid: u32,
    pub(super) gid: u32,
}

impl User {
    /// `None` where the servers can run as the current user, that is, everywhere but under root.
    pub(super) fn for_servers() -> io::Result<Option<Self>> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let passwd = std::fs::read_to_string("/etc/passwd")?;
        let user = ["postgres", "nobody"].iter().find_map(|name| Self::find(&passwd, name));
        user.map(Some)
            .ok_or_else(|| io::Error::other("running as root, and there is no user postgres or nobody"))
    }

    fn find(passwd: &str, name: &str) -> Option<Self> {
        let line = passwd.lines().find(|line| line.split(':').next() == Some(name))?;
        let mut fields = line.split(':').skip(2);
        let uid = fields.next()?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        Some(Self { name: name.to_owned(), uid, gid })
    }
}

/// A directory that is removed when this value is dropped.
#[derive(Debug)]
pub(super) struct PrivateDir {
    path: PathBuf,
    owner: Option<User>,
}

impl PrivateDir {
    /// Makes `<tmp>/posthaste-<what>-<random>`, closed to everybody but `owner`. The name is kept short:
    /// PostgreSQL puts a socket into it, and a socket's path has at most 107 bytes.
    pub(super) fn create(what: &str, owner: Option<User>) -> io::Result<Self> {
        let random = Uuid::now_v7().as_u128() as u64;
        let path = std::env::temp_dir().join(format!("posthaste-{what}-{random:016x}"));
        DirBuilder::new().mode(0o700).create(&path)?;
        let dir = Self { path, owner };
        dir.give(&dir.path)?;
        Ok(dir)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn owner(&self) -> Option<&User> {
        self.owner.as_ref()
    }

    pub(super) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Writes a file that only the owner can read, as servers demand of a private key.
    pub(super) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> io::Result<PathBuf> {
        let path = self.join(name);
        std::fs::write(&path, content)?;
        std::fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        self.give(&path)?;
        Ok(path)
    }

    fn give(&self, path: &Path) -> io::Result<()> {
        match &self.owner {
            Some(user) => chown(path, Some(user.uid), Some(user.gid)),
            None => Ok(()),
        }
    }
}

impl Drop for PrivateDir {
    fn drop(&mut self) {
        // What cannot be removed is litter in the system's temporary directory, no reason to fail a test.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
