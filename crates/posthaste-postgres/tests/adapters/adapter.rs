//! One seam over the libraries, for the tests alone: run a transaction, append in it, end it.

use diesel::Connection;
use diesel::result::Error as DieselError;
use diesel_async::AsyncConnection;
use posthaste::Event;
use posthaste::inbox::Admission;
use sea_orm::TransactionTrait;
use std::error::Error;
use uuid::Uuid;

/// What one transaction does.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Act {
    pub(crate) batch: bool,
    pub(crate) commit: bool,
}

/// An answer for each event, or one for a batch that failed.
pub(crate) type Answers = Vec<Result<Uuid, String>>;

pub(crate) trait Adapter {
    /// Appends the events in one transaction on a connection of its own, and ends it as told.
    async fn transact(url: &str, events: &[Event], act: Act) -> Answers;
    /// Admits messages of the consumer `billing` in one transaction, and ends it as told.
    async fn admit(url: &str, ids: &[&str], commit: bool) -> Admissions;
}

/// An answer for each message.
pub(crate) type Admissions = Vec<Result<Admission, String>>;

fn told<E: Error>(error: E) -> String {
    let cause = error.source().map(ToString::to_string).unwrap_or_default();
    format!("{error}: {cause}")
}

fn spread<E: Error>(batch: Result<Vec<Uuid>, E>) -> Answers {
    match batch {
        Ok(ids) => ids.into_iter().map(Ok).collect(),
        Err(error) => vec![Err(told(error))],
    }
}

pub(crate) struct Sqlx;

impl Adapter for Sqlx {
    async fn transact(url: &str, events: &[Event], act: Act) -> Answers {
        use posthaste_postgres::sqlx::{append, append_all};
        let pool = sqlx::PgPool::connect(url).await.expect("a pool");
        let mut tx = pool.begin().await.expect("begin");
        let mut answers = Answers::new();
        if act.batch {
            answers = spread(append_all(&mut tx, events).await);
        } else {
            for event in events {
                answers.push(append(&mut tx, event).await.map_err(told));
            }
        }
        if act.commit { tx.commit().await } else { tx.rollback().await }.expect("the end");
        answers
    }

    async fn admit(url: &str, ids: &[&str], commit: bool) -> Admissions {
        let pool = sqlx::PgPool::connect(url).await.expect("a pool");
        let mut tx = pool.begin().await.expect("begin");
        let mut answers = Admissions::new();
        for id in ids {
            answers.push(posthaste_postgres::sqlx::admit(&mut tx, "billing", id).await.map_err(told));
        }
        if commit { tx.commit().await } else { tx.rollback().await }.expect("the end");
        answers
    }
}

pub(crate) struct SeaOrm;

impl Adapter for SeaOrm {
    async fn transact(url: &str, events: &[Event], act: Act) -> Answers {
        use posthaste_postgres::sea_orm::{append, append_all};
        let db = sea_orm::Database::connect(url).await.expect("a pool");
        let tx = db.begin().await.expect("begin");
        let mut answers = Answers::new();
        if act.batch {
            answers = spread(append_all(&tx, events).await);
        } else {
            for event in events {
                answers.push(append(&tx, event).await.map_err(told));
            }
        }
        if act.commit { tx.commit().await } else { tx.rollback().await }.expect("the end");
        answers
    }

    async fn admit(url: &str, ids: &[&str], commit: bool) -> Admissions {
        let db = sea_orm::Database::connect(url).await.expect("a pool");
        let tx = db.begin().await.expect("begin");
        let mut answers = Admissions::new();
        for id in ids {
            answers.push(posthaste_postgres::sea_orm::admit(&tx, "billing", id).await.map_err(told));
        }
        if commit { tx.commit().await } else { tx.rollback().await }.expect("the end");
        answers
    }
}

/// Rolls back, if the act says so, by the only way diesel knows.
fn ended(act: Act) -> Result<(), DieselError> {
    if act.commit { Ok(()) } else { Err(DieselError::RollbackTransaction) }
}

pub(crate) struct Diesel;

impl Adapter for Diesel {
    async fn transact(url: &str, events: &[Event], act: Act) -> Answers {
        use posthaste_postgres::diesel::{append, append_all};
        tokio::task::block_in_place(|| {
            let mut conn = diesel::PgConnection::establish(url).expect("a connection");
            let mut answers = Answers::new();
            let end = conn.transaction(|conn| {
                if act.batch {
                    answers = spread(append_all(conn, events));
                } else {
                    answers = events.iter().map(|event| append(conn, event).map_err(told)).collect();
                }
                ended(act)
            });
            assert_eq!(end, ended(act));
            answers
        })
    }

    async fn admit(url: &str, ids: &[&str], commit: bool) -> Admissions {
        use posthaste_postgres::diesel::admit;
        let act = Act { batch: false, commit };
        tokio::task::block_in_place(|| {
            let mut conn = diesel::PgConnection::establish(url).expect("a connection");
            let mut answers = Admissions::new();
            let end = conn.transaction(|conn| {
                answers = ids.iter().map(|id| admit(conn, "billing", id).map_err(told)).collect();
                ended(act)
            });
            assert_eq!(end, ended(act));
            answers
        })
    }
}

pub(crate) struct DieselAsync;

impl Adapter for DieselAsync {
    async fn transact(url: &str, events: &[Event], act: Act) -> Answers {
        use posthaste_postgres::diesel_async::{append, append_all};
        let mut conn = diesel_async::AsyncPgConnection::establish(url).await.expect("a connection");
        let mut answers = Answers::new();
        let end = conn
            .transaction(async |conn| {
                if act.batch {
                    answers = spread(append_all(conn, events).await);
                } else {
                    for event in events {
                        answers.push(append(conn, event).await.map_err(told));
                    }
                }
                ended(act)
            })
            .await;
        assert_eq!(end, ended(act));
        answers
    }

    async fn admit(url: &str, ids: &[&str], commit: bool) -> Admissions {
        use posthaste_postgres::diesel_async::admit;
        let act = Act { batch: false, commit };
        let mut conn = diesel_async::AsyncPgConnection::establish(url).await.expect("a connection");
        let mut answers = Admissions::new();
        let end = conn
            .transaction(async |conn| {
                for id in ids {
                    answers.push(admit(conn, "billing", id).await.map_err(told));
                }
                ended(act)
            })
            .await;
        assert_eq!(end, ended(act));
        answers
    }
}
