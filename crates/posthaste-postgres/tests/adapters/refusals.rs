//! What a library's types cannot refuse, the adapter does (F8).

use super::Outbox;
use diesel::Connection;
use diesel::result::Error as DieselError;
use diesel_async::AsyncConnection;
use posthaste::Event;
use posthaste_postgres::diesel::{AdmitError, AppendError};
use sea_orm::TransactionTrait;

fn event() -> Event {
    Event::new("t", "x")
}

fn is_refused<T: std::fmt::Debug>(answer: Result<T, AppendError>) {
    let error = answer.expect_err("there is no transaction");
    assert!(matches!(error, AppendError::NoTransaction), "{error:?}");
    assert!(error.to_string().contains("conn.transaction"), "{error}");
    assert!(DieselError::from(error).to_string().contains("no open transaction"));
}

fn is_not_admitted<T: std::fmt::Debug>(answer: Result<T, AdmitError>) {
    let error = answer.expect_err("there is no transaction");
    assert!(matches!(error, AdmitError::NoTransaction), "{error:?}");
    assert!(DieselError::from(error).to_string().contains("no open transaction"));
}

#[tokio::test(flavor = "multi_thread")]
async fn f8_diesel_refuses_a_connection_without_a_transaction() {
    use posthaste_postgres::diesel::{admit, append, append_all};
    let Some(outbox) = Outbox::make().await else { return };
    let url = outbox.url();
    tokio::task::block_in_place(|| {
        let mut conn = diesel::PgConnection::establish(&url).expect("a connection");
        is_refused(append(&mut conn, &event()));
        is_refused(append_all(&mut conn, &[event(), event()]));
        is_not_admitted(admit(&mut conn, "billing", "a"));
        // A savepoint that is rolled back takes its event with it; the transaction around it keeps its own.
        let ended = conn.transaction(|conn| {
            let inner = conn.transaction(|conn| {
                append(conn, &event())?;
                Err::<(), _>(DieselError::RollbackTransaction)
            });
            assert_eq!(inner, Err(DieselError::RollbackTransaction));
            append(conn, &event())
        });
        ended.expect("committed");
        is_refused(append(&mut conn, &event()));
    });
    assert_eq!(outbox.count().await, 1);
}

#[tokio::test]
async fn f8_diesel_async_refuses_a_connection_without_a_transaction() {
    use posthaste_postgres::diesel_async::{admit, append, append_all};
    let Some(outbox) = Outbox::make().await else { return };
    let mut conn = diesel_async::AsyncPgConnection::establish(&outbox.url()).await.expect("a connection");
    is_refused(append(&mut conn, &event()).await);
    is_refused(append_all(&mut conn, &[event(), event()]).await);
    is_not_admitted(admit(&mut conn, "billing", "a").await);
    conn.transaction(async |conn| append(conn, &event()).await).await.expect("committed");
    is_refused(append(&mut conn, &event()).await);
    assert_eq!(outbox.count().await, 1);
}

#[tokio::test]
async fn sea_orm_refuses_another_database() {
    use posthaste_postgres::sea_orm::{AdmitError, AppendError, admit, append, append_all};
    let db = sea_orm::MockDatabase::new(sea_orm::DbBackend::MySql).into_connection();
    let tx = db.begin().await.expect("begin");
    assert!(matches!(append(&tx, &event()).await, Err(AppendError::NotPostgres(_))));
    assert!(matches!(append_all(&tx, &[event()]).await, Err(AppendError::NotPostgres(_))));
    assert!(matches!(admit(&tx, "billing", "a").await, Err(AdmitError::NotPostgres(_))));
}
