//! The login of operators: `admin_url` of an outbox.

use crate::config::{Review, member};
use crate::database::Database;
use std::path::PathBuf;

/// The same database with the login of operators. A file has one login, and needs no other.
pub(crate) fn acting(
    review: &mut Review<'_>,
    path: &str,
    given: (&Option<String>, &Option<PathBuf>),
    database: &Database,
) -> Option<Database> {
    let (url, file) = (given.0.as_ref(), given.1.as_ref());
    let mut acting = database.clone();
    match &mut acting {
        Database::Postgres { config, .. } | Database::Adopted { config, .. } => {
            if url.is_none() && file.is_none() {
                return None;
            }
            if url.is_some() && file.is_some() {
                review.problem(
                    &member(path, "admin_url"),
                    "`admin_url` and `admin_url_file` are two: give one",
                );
            }
            config.url = match file {
                None => url.cloned().unwrap_or_default(),
                Some(file) => match std::fs::read_to_string(file) {
                    Ok(text) => text.trim().to_owned(),
                    Err(error) => {
                        let why = format!("admin_url_file {} cannot be read: {error}", file.display());
                        review.problem(&member(path, "admin_url_file"), why);
                        return None;
                    }
                },
            };
            if config.url.parse::<tokio_postgres::Config>().is_err() {
                review.problem(
                    &member(path, "admin_url"),
                    "admin_url is not the address of a PostgreSQL database",
                );
            }
            // The password file is of the other login.
            config.password_file = None;
        }
        #[cfg(feature = "sqlite")]
        Database::Sqlite(_) if url.is_some() || file.is_some() => {
            review.problem(&member(path, "admin_url"), "a file has one login: leave `admin_url` out");
        }
        #[cfg(feature = "sqlite")]
        Database::Sqlite(_) => {}
    }
    Some(acting)
}
